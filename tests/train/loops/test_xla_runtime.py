"""XLA's devices; what runs on them, the tests of the entries show."""

from tests.support.training import flags_of, start


def test_a_missing_xla_device_is_an_error_of_one_line(tmp_path):
    arguments = flags_of(device="xla", model="tiny_cnn", output_dir=tmp_path, data_path="none")
    with start("train.train_resnet", *arguments, PJRT_DEVICE="TPU") as process:
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 2, errors[-2000:]
    line = errors.splitlines()[-1]
    assert line.startswith("train_resnet: no XLA device (PJRT_DEVICE=TPU): ")
    assert "; on a TPU pip install 'tpu-dataprep[tpu-torch]'; " in line
    assert line.endswith("; elsewhere set PJRT_DEVICE=CPU, or use --device cpu")
    assert "Traceback" not in errors
