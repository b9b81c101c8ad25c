"""The JAX adapter: on four devices of one process, and on two devices each of two processes."""

import contextlib
import math
import os
import random
import re
import socket
import subprocess
import sys

import pytest

from tests.support.adapters import AdapterContract, run_module, start_module
from tests.support.markdown import blocks
from tests.support.multi_device import BATCHES, placed
from tests.support.training import report_of

FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
TWO = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


class TestJAX(AdapterContract):
    adapter = "jax"
    environment = FOUR


@pytest.fixture
def port():
    """A free one, below those that any connection of another program may be given meanwhile."""
    for port in random.sample(range(20_000, 30_000), 50):
        with contextlib.suppress(OSError), socket.create_server(("localhost", port)):
            return port
    raise OSError("no free port")


def test_each_device_gets_its_own_part_of_the_batch(dataset):
    report = run_module("tests.support.multi_device", "jax", dataset("webdataset"), 0, 1, 0, **FOUR)
    assert len(report) == BATCHES
    for step in placed(dataset("webdataset"), [report]):
        rows = list(zip(step.batch.keys, step.batch.labels.tolist(), strict=True))
        assert step.by_device == {str(device): rows[3 * device :][:3] for device in range(4)}
        assert step.by_process == [step.batch.keys]
        assert step.shapes == [list(step.batch.images.shape)]
        assert step.sums == [step.batch.images.sum()]


def test_the_training_of_the_documents_runs(dataset):
    (text,) = (block.text for block in blocks("docs/loaders.md") if "device_batches" in block.text)
    program = text
    for asked, small in (
        ('"gs://bucket/imagenet", batch_size=1024', f'"{dataset("webdataset")}", batch_size=12'),
        ("loader.epoch < 90", "loader.epoch < 3"),
    ):
        assert text.count(asked) == 1
        program = program.replace(asked, small)
    command = [sys.executable, "-c", program + "print(weights.sharding.num_devices)"]
    run = subprocess.run(command, env={**os.environ, "JAX_PLATFORMS": "cpu", **FOUR}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    *lines, devices = run.stdout.splitlines()
    epochs, losses = zip(*(re.fullmatch(r"epoch (\d+) loss (\S+)", line).groups() for line in lines), strict=True)
    assert (epochs, devices) == (("1", "2", "3"), "4")
    assert math.log(1000) > float(losses[0]) > float(losses[2]) > 0, "weights of 0 give log(1000)"


def test_in_two_processes_every_device_has_its_own_part_of_the_global_batch(dataset, port):
    url = dataset("webdataset")
    programs = [start_module("tests.support.multi_device", "jax", url, rank, 2, port, **TWO) for rank in range(2)]
    reports = [report_of(program) for program in programs]
    assert [len(report) for report in reports] == [BATCHES, BATCHES]
    for step in placed(url, reports):
        assert [len(rows) for rows in step.by_device.values()] == [3] * 4
        on_devices = [row for rows in step.by_device.values() for row in rows]
        assert sorted(on_devices) == sorted(zip(step.batch.keys, step.batch.labels.tolist(), strict=True))
        # Rank r's rows are positions with G % 2 == r, on its own two devices, beside its keys.
        assert step.by_process == [step.batch.keys[0::2], step.batch.keys[1::2]]
        assert [key for key, _ in on_devices] == [key for keys in step.by_process for key in keys]
        assert step.shapes == 2 * [list(step.batch.images.shape)]
        assert step.sums == 2 * [step.batch.images.sum()]  # over both processes, by each of them
