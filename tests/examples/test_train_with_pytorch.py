"""The example of PyTorch: under torchrun in two processes, killed and started again, and alone."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.markdown import blocks
from tests.support.own_data import picture, write_files

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/train_with_pytorch.py"
STEPS = 12
"""50 images in batches of 12 over three epochs, which end after the steps 4, 8 and 12."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> str:
    """Pictures in class folders, with a caption beside each."""
    folder = tmp_path_factory.mktemp("captioned")
    files = {}
    for number in range(50):
        name = f"pairs/train/{('cats', 'dogs')[number % 2]}/{number}"
        files |= {f"{name}.jpg": picture(number, size=(80, 90)), f"{name}.txt": f"a pet, number {number}"}
    write_files(folder, files)
    words = "build folder --source pairs --output shards --format webdataset --text-files caption".split()
    subprocess.run([sys.executable, "-m", "dataprep", *words], cwd=folder, check=True, capture_output=True)
    return str(folder / "shards")


def started(shards: str, checkpoint: Path, world_size: int) -> subprocess.Popen:
    """Start the example; its output is that of all processes."""
    launcher = []
    if world_size > 1:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(world_size), "--master_port", port]
    return subprocess.Popen(
        [sys.executable, *launcher, str(EXAMPLE), shards, str(checkpoint)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def losses(output: str) -> dict[tuple[int, int], str]:
    """What each rank said of each step, by rank and step."""
    found = {}
    for rank, step, said in re.findall(r"^rank (\d), step (\d+): (.*)$", output, re.MULTILINE):
        assert found.setdefault((int(rank), int(step)), said) == said
    return found


def run(shards: str, checkpoint: Path, world_size: int) -> dict[tuple[int, int], str]:
    """The losses of a run that ends by itself."""
    with started(shards, checkpoint, world_size) as process:
        output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors[-3000:]
    return losses(output)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_killed_run_goes_on_with_the_same_losses(shards, tmp_path, world_size):
    expected = run(shards, tmp_path / "whole.pt", world_size)
    assert sorted(expected) == [(rank, step) for rank in range(world_size) for step in range(1, STEPS + 1)]
    ends = [step for (rank, step), said in expected.items() if rank == 0 and said.endswith(", epoch ended")]
    assert sorted(ends) == [4, 8, 12]

    checkpoint = tmp_path / "killed.pt"
    output = ""
    with started(shards, checkpoint, world_size) as process:
        for line in process.stdout:
            output += line
            if line.startswith("rank 0, step 7:"):
                launcher = psutil.Process(process.pid)
                for each in (launcher, *launcher.children(recursive=True)):
                    each.kill()
                output += process.stdout.read()
    assert checkpoint.exists()
    rest = run(shards, checkpoint, world_size)
    assert min(step for _, step in rest) > 4
    assert losses(output).items() <= expected.items()
    assert rest.items() <= expected.items()
    assert (losses(output) | rest).keys() >= {(0, step) for step in range(1, STEPS + 1)}


def test_the_document_shows_the_whole_example():
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 60
    (shown,) = (block.text for block in blocks("docs/loaders.md") if "init_process_group" in block.text)
    assert shown.strip() == text.partition('"""\n\n')[2].strip()
