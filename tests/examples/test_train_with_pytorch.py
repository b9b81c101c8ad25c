"""The example of PyTorch: under torchrun in two processes, killed and started again, and alone."""

import os
import re
import runpy
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from loaders import open_loader
from tests.support.markdown import blocks
from tests.support.on_use import on_use
from tests.support.own_data import picture, write_files

torch = on_use("torch")
TorchBatches = on_use("loaders.torch:TorchBatches")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/train_with_pytorch.py"
STEPS = 15
"""50 images in batches of 12 over three epochs, which end after the steps 5, 10 and 15."""
HELD = """
import builtins, runpy, signal, sys

said = builtins.print

def held(*words, **how):
    said(*words, **how)
    if words[0].startswith("rank 0, step 7:"):
        signal.pause()

builtins.print = held
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Program that runs the example and waits in its seventh step until it is killed."""
EVALUATED = 14
"""Images of the split val, which are a batch and two rows of the next one."""


def build(folder: Path, classes: tuple[str, ...], trained: int) -> str:
    """Build a dataset of pictures in class folders, with a caption beside each."""
    files = {}
    for split, images in (("train", trained), ("val", EVALUATED)):
        for number in range(images):
            name = f"pairs/{split}/{classes[number % len(classes)]}/{number}"
            files |= {f"{name}.jpg": picture(number, size=(80, 90)), f"{name}.txt": f"a pet, number {number}"}
    write_files(folder, files)
    words = "build folder --source pairs --output shards --format webdataset --text-files caption".split()
    subprocess.run([sys.executable, "-m", "dataprep", *words], cwd=folder, check=True, capture_output=True)
    return str(folder / "shards")


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> str:
    return build(tmp_path_factory.mktemp("captioned"), ("cats", "dogs"), 50)


def started(
    shards: str, checkpoint: Path, world_size: int, *weights: str, program: Sequence[Path] = (EXAMPLE,)
) -> subprocess.Popen:
    """Start the example; its output is that of all processes."""
    launcher = []
    if world_size > 1:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(world_size), "--master_port", port]
    return subprocess.Popen(
        [sys.executable, *launcher, *map(str, program), shards, str(checkpoint), *weights],
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


def run(shards: str, checkpoint: Path, world_size: int, *weights: str) -> str:
    """The output of a run that ends by itself."""
    with started(shards, checkpoint, world_size, *weights) as process:
        output, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors[-3000:]
    return output


def evaluated(shards: str, checkpoint: Path) -> str:
    """An evaluation of a checkpoint in one batch without rows that fill it up."""
    weights = torch.load(checkpoint)["model"]
    with open_loader(shards, "val", batch_size=EVALUATED, image_size=64, fields=("caption",)) as loader:
        (batch,) = TorchBatches(loader)
    inputs_of = runpy.run_path(str(EXAMPLE))["inputs_of"]
    hidden = torch.relu(inputs_of(batch, torch.device("cpu")) @ weights["0.weight"].T + weights["0.bias"])
    found = (hidden @ weights["2.weight"].T + weights["2.bias"]).argmax(1)
    return f"{int((found == batch.labels).sum())} of {EVALUATED} right in val"


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_killed_run_goes_on_with_the_same_losses(shards, tmp_path, world_size):
    expected = losses(run(shards, tmp_path / "whole.pt", world_size))
    assert sorted(expected) == [(rank, step) for rank in range(world_size) for step in range(1, STEPS + 1)]
    ends = [step for (rank, step), said in expected.items() if rank == 0 and ", epoch ended, " in said]
    assert sorted(ends) == [5, 10, 15]
    evaluations = {said.partition(", epoch ended, ")[2] for (_, step), said in expected.items() if step == STEPS}
    assert evaluations == {evaluated(shards, tmp_path / "whole.pt")}

    checkpoint = tmp_path / "killed.pt"
    output = ""
    (tmp_path / "held.py").write_text(HELD)
    with started(shards, checkpoint, world_size, program=(tmp_path / "held.py", EXAMPLE)) as process:
        for line in process.stdout:
            output += line
            if line.startswith("rank 0, step 7:"):
                launcher = psutil.Process(process.pid)
                for each in (launcher, *launcher.children(recursive=True)):
                    each.kill()
                output += process.stdout.read()
    assert checkpoint.exists()
    rest = losses(run(shards, checkpoint, world_size))
    assert min(step for _, step in rest) == 7
    assert losses(output).items() <= expected.items()
    assert rest.items() <= expected.items()
    assert (losses(output) | rest).keys() >= {(0, step) for step in range(1, STEPS + 1)}


def test_a_finished_run_that_is_started_again_says_so(shards, tmp_path):
    checkpoint = tmp_path / "run.pt"
    run(shards, checkpoint, 1)
    before = checkpoint.read_bytes()
    assert run(shards, checkpoint, 1) == "rank 0: all 3 epochs are done\n"
    assert checkpoint.read_bytes() == before


@pytest.mark.parametrize(
    ("classes", "began"),
    [
        (("cats", "dogs"), "<All keys matched successfully>"),
        (("birds", "cats", "dogs"), "_IncompatibleKeys(missing_keys=['2.weight', '2.bias'], unexpected_keys=[])"),
    ],
)
def test_a_dataset_that_grew_is_refused_in_one_line_and_a_new_run_begins_with_the_weights(
    shards, tmp_path, classes, began
):
    checkpoint = tmp_path / "run.pt"
    run(shards, checkpoint, 1)
    grown = build(tmp_path, classes, 60)
    with started(grown, checkpoint, 1) as process:
        output, errors = process.communicate(timeout=800)
    assert (process.returncode, output) == (1, "")
    assert errors.startswith(f"{grown}: the dataset was built or adopted again since the state was made")
    assert "load the weights of the model alone" in errors
    assert errors.count("\n") == 1

    second = tmp_path / "second.pt"
    output = run(grown, second, 1, str(checkpoint))
    assert output.startswith(f"rank 0, {checkpoint}: {began}\n")
    assert min(losses(output)) == (0, 1)
    old, new = (torch.load(path)["model"]["0.weight"] for path in (checkpoint, second))
    assert (old - new).norm() < 0.1 * old.norm()
    assert run(grown, second, 1, str(checkpoint)) == "rank 0: all 3 epochs are done\n"


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 80


def test_the_program_of_the_document_trains_and_goes_on_after_its_last_epoch(shards, tmp_path):
    (text,) = (block.text for block in blocks("docs/loaders.md") if "normalize(batch.images" in block.text)
    asked = '"gs://bucket/imagenet", batch_size=256'
    assert (text.count(asked), text.count("< 90:"), text.count("optimizer.step()")) == (1, 1, 1)
    text = text.replace(asked, f'"{shards}", batch_size=10')
    text = text.replace("optimizer.step()", "optimizer.step(), print(batch.state['position'])")
    printed = [
        subprocess.run(
            [sys.executable, "-c", text.replace("< 90:", f"< {epochs}:")],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for epochs in (2, 3)
    ]
    positions = [str(10 * step) for step in range(1, 16)]
    assert printed == [positions[:10], positions[10:]]
