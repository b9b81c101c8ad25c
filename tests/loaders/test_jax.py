"""The JAX adapter: on four devices of one process, and on two devices each of two processes."""

import contextlib
import os
import random
import socket
import subprocess
import sys

import pytest

from loaders import open_loader
from tests.support.adapters import AdapterContract, finished, run_module, start_module
from tests.support.markdown import blocks
from tests.support.multi_device import BATCHES, placed

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


def test_the_example_of_the_documents_runs(dataset):
    (text,) = (block.text for block in blocks("docs/loaders.md") if "device_batches" in block.text)
    asked = '"gs://bucket/imagenet", batch_size=1024, image_size=224'
    assert text.count(asked) == 1
    program = text.replace(asked, f'"{dataset("webdataset")}", batch_size=12, image_size=32')
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env={**os.environ, "JAX_PLATFORMS": "cpu", **FOUR}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    with open_loader(str(dataset("webdataset")), batch_size=12, image_size=32) as loader:
        means = [batch.images.mean() for batch in loader]
    printed = [line.split(" ", 1) for line in run.stdout.splitlines()]
    assert [float(mean) for mean, _ in printed] == pytest.approx(means, rel=1e-4)
    assert {spec.partition("(")[2] for _, spec in printed} == {"'data',)"}


def test_in_two_processes_every_device_has_its_own_part_of_the_global_batch(dataset, port):
    url = dataset("webdataset")
    programs = [start_module("tests.support.multi_device", "jax", url, rank, 2, port, **TWO) for rank in range(2)]
    reports = [finished(program) for program in programs]
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
