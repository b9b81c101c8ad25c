"""XLA's devices; what runs on them, the tests of the entries show."""

import itertools
import os
import subprocess
import sys
import threading

import pytest

from tests.support.training import flags_of, start

STEPS = 300


@pytest.mark.long
def test_a_missing_xla_device_is_an_error_of_one_line(tmp_path):
    arguments = flags_of(device="xla", model="tiny_cnn", output_dir=tmp_path, data_path="none")
    with start("train.train_resnet", *arguments, PJRT_DEVICE="TPU") as process:
        _, errors = process.communicate(timeout=800)
    assert process.returncode == 2, errors[-2000:]
    line = errors.splitlines()[-1]
    assert line.startswith("dataprep-train-resnet: no XLA device (PJRT_DEVICE=TPU): ")
    assert "; on a TPU pip install 'tpu-dataprep[tpu-torch]'; " in line
    assert line.endswith("; elsewhere set PJRT_DEVICE=CPU, or use --device cpu")
    assert "Traceback" not in errors


def test_the_device_that_is_taken_by_default_is_no_warning(tmp_path):
    arguments = flags_of(device="xla", model="tiny_cnn", output_dir=tmp_path, data_path="none")
    variables = {name: value for name, value in os.environ.items() if name != "PJRT_DEVICE"}
    command = [sys.executable, "-m", "train.train_resnet", *arguments]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 2, run.stderr
    assert "PJRT_DEVICE" not in run.stderr
    assert len(run.stderr.splitlines()) == 1, "the error about the data"


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_thread_can_copy_batches_while_another_one_trains(devices):
    with start("tests.train.loops.test_xla_runtime", CPU_NUM_DEVICES=str(devices)) as process:
        output, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors[-2000:]
    assert int(output) > 0


def copy_while_training() -> int:
    """Launch steps while a thread copies batches; the number of batches, which arrive as they were sent."""
    import torch

    from train.loops.xla_runtime import XLARuntime

    runtime = XLARuntime()
    ended, failed, copied = threading.Event(), [], 0

    def copy() -> None:
        nonlocal copied
        try:
            for number in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
                rows = torch.full((8, 3, 4, 4), number % 256, dtype=torch.uint8)
                assert torch.equal(runtime.put_whole(rows).cpu(), rows)
                copied += 1
        except BaseException as error:  # noqa: BLE001  of any kind
            failed.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    weights = torch.zeros((64, 64), device=runtime.device)
    for step in range(STEPS):
        weights = weights @ weights + 1
        runtime.end_step()
        if step % 10 == 0:
            float(weights[0, 0])
    ended.set()
    thread.join()
    if failed:
        raise failed[0]
    return copied


if __name__ == "__main__":
    print(copy_while_training())
    sys.exit()
