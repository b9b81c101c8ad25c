"""The example of PyTorch: in two processes as torchrun starts them, killed and started again, and alone."""

import builtins
import os
import re
import runpy
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from loaders import open_loader
from tests.support import warm
from tests.support.builds import build_arguments, succeeds
from tests.support.markdown import ROOT, blocks
from tests.support.on_use import on_use
from tests.support.own_data import picture, write_files

torch = on_use("torch")
TorchBatches = on_use("loaders.torch:TorchBatches")

EXAMPLE = ROOT / "examples/train_with_pytorch.py"
STEPS = 15
"""50 images in batches of 12 over three epochs, which end after the steps 5, 10 and 15."""
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
    words = build_arguments("folder", folder / "pairs", folder / "shards", "webdataset", "--text-files", "caption")
    succeeds(*words)
    return str(folder / "shards")


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> str:
    return build(tmp_path_factory.mktemp("captioned"), ("cats", "dogs"), 50)


@pytest.fixture(scope="module")
def whole(shards, tmp_path_factory) -> tuple[Path, str]:
    """The checkpoint and the output of a run of one process."""
    checkpoint = tmp_path_factory.mktemp("whole") / "run.pt"
    return checkpoint, run(shards, checkpoint, 1)


def started(
    program: Path, *arguments: object, world_size: int = 1, held: str = "", folder: Path = ROOT
) -> list[warm.Process]:
    """Start a program in so many processes, which wait for their end once they say what begins with `held`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HELD": held}
    if world_size > 1:  # as torchrun sets them
        shared |= {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = ("tests.examples.test_train_with_pytorch", str(program), *map(str, arguments))
    processes = []
    for rank in range(world_size):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world_size > 1 else {}
        processes.append(warm.start(*words, environment=shared | of_rank, folder=folder))
    return processes


def losses(output: str) -> dict[tuple[int, int], str]:
    """What each rank said of each step, by rank and step."""
    found = {}
    for rank, step, said in re.findall(r"^rank (\d), step (\d+): (.*)$", output, re.MULTILINE):
        assert found.setdefault((int(rank), int(step)), said) == said
    return found


def run(shards: str, checkpoint: Path, world_size: int, *weights: str) -> str:
    """The output of a run that ends by itself."""
    output = ""
    for process in started(EXAMPLE, shards, checkpoint, *weights, world_size=world_size):
        with process:
            said, errors = process.communicate()
        assert process.returncode == 0, errors[-3000:]
        output += said
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
def test_a_killed_run_goes_on_with_the_same_losses(shards, whole, tmp_path, world_size):
    checkpoint, said = whole
    if world_size > 1:
        checkpoint = tmp_path / "whole.pt"
        said = run(shards, checkpoint, world_size)
    expected = losses(said)
    assert sorted(expected) == [(rank, step) for rank in range(world_size) for step in range(1, STEPS + 1)]
    ends = [step for (rank, step), said in expected.items() if rank == 0 and ", epoch ended, " in said]
    assert sorted(ends) == [5, 10, 15]
    evaluations = {said.partition(", epoch ended, ")[2] for (_, step), said in expected.items() if step == STEPS}
    assert evaluations == {evaluated(shards, checkpoint)}

    checkpoint, output = tmp_path / "killed.pt", ""
    first, *others = started(EXAMPLE, shards, checkpoint, world_size=world_size, held="rank 0, step 7:")
    for line in first.stdout:
        output += line
        if line.startswith("rank 0, step 7:"):
            break
    for process in (first, *others):
        process.kill()
    output += "".join(process.communicate()[0] for process in (first, *others))
    assert checkpoint.exists()
    rest = losses(run(shards, checkpoint, world_size))
    assert min(step for _, step in rest) == 7
    assert losses(output).items() <= expected.items()
    assert rest.items() <= expected.items()
    assert (losses(output) | rest).keys() >= {(0, step) for step in range(1, STEPS + 1)}


def test_a_finished_run_that_is_started_again_says_so(shards, whole):
    checkpoint, _ = whole
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
    whole, tmp_path, classes, began
):
    checkpoint, second = shutil.copy(whole[0], tmp_path / "run.pt"), tmp_path / "second.pt"
    grown = build(tmp_path, classes, 60)
    (process,) = started(EXAMPLE, grown, checkpoint)
    output, errors = process.communicate()
    assert (process.returncode, output) == (1, "")
    assert errors.startswith(f"{grown}: the dataset was built or adopted again since the state was made")
    assert "load the weights of the model alone" in errors
    assert errors.count("\n") == 1

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
    printed = []
    for epochs in (2, 3):
        (tmp_path / "program.py").write_text(text.replace("< 90:", f"< {epochs}:"))
        (process,) = started(tmp_path / "program.py", folder=tmp_path)
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        printed.append(output.split())
    positions = [str(10 * step) for step in range(1, 16)]
    assert printed == [positions[:10], positions[10:]]


def held_where_it_says(*words: object, **how: object) -> None:
    """Print, and wait to be killed after the line that the environment names."""
    said(*words, **how)
    if os.environ["HELD"] and str(words[0]).startswith(os.environ["HELD"]):
        signal.pause()


if __name__ == "__main__":
    said, builtins.print = builtins.print, held_where_it_says
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
