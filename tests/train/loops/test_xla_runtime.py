"""XLA's devices; what runs on them, the tests of the entries show."""

import os
import subprocess
import sys

from tests.support.training import flags_of

STEPS = 300


def test_the_device_that_is_taken_by_default_is_no_warning(tmp_path):
    arguments = flags_of(device="xla", model="tiny_cnn", output_dir=tmp_path, data_path="none")
    variables = {name: value for name, value in os.environ.items() if name != "PJRT_DEVICE"}
    command = [sys.executable, "-m", "train.train_resnet", *arguments]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 2, run.stderr
    assert "PJRT_DEVICE" not in run.stderr
    assert len(run.stderr.splitlines()) == 1, "the error about the data"
