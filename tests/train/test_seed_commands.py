"""The command lines of the seed systems, as docs/training.md shows them, run on any data with smaller sizes added."""

import json
import os
import shlex
import shutil
import string
import sys
from pathlib import Path

import pytest

from dataprep.demo.make import write_demo
from tests.support.finished import build_here
from tests.support.markdown import blocks, commands
from tests.support.training import start
from tests.support.words import replaced
from train import pretrain_mae, train_resnet

DOCUMENT = "docs/training.md"
ENTRIES = {"dataprep-pretrain-mae": pretrain_mae.command, "dataprep-train-resnet": train_resnet.command}
KINDS = ("tfrecord", "imagefolder", "shards")
SIZES = {
    "dataprep-pretrain-mae": "--model mae_vit_micro_patch8 --input-size 32 --effective-batch-size 8 --epochs 1 "
    "--warmup-epochs 0 --num-workers 2",
    "dataprep-train-resnet": "--model tiny_cnn --image-size 32 --batch-size 8 --test-set-batch-size 8 --num-epochs 1 "
    "--log-steps 1 --num-workers 2",
}
"""What is said in place of what the document says."""
VARIABLES = {"SAVE_DIR": "out", "LOGDIR": "out", "NUM_EPOCHS": "2", "BATCH_SIZE": "256", "NUM_WORKERS": "8"} | {
    "TEST_BATCH_SIZE": "64"
}


def seed_command(entry: str, data: str) -> list[str]:
    """The arguments that the document shows for an entry, with variables in them, as the seeds' scripts have."""
    (found,) = [
        command.text
        for block in blocks(DOCUMENT)
        if block.info == "sh"
        for command in commands(block)
        if command.text.startswith(f"{entry} ") and "$" in command.text
    ]
    values = {**VARIABLES, "DATA_DIR": data, "IMAGE_DIR": data}
    words = shlex.split(string.Template(found).substitute(values))[1:]
    return [str(word) for word in replaced(words, *shlex.split(SIZES[entry]))]


@pytest.fixture(scope="module")
def kinds(dataset, tmp_path_factory) -> dict[str, str]:
    """The same photographs: a folder of class folders, a TFDS directory, our shards."""
    root = tmp_path_factory.mktemp("kinds")
    write_demo("imagenet", root / "originals", images=70, odd=False)
    found = {"shards": dataset}
    for fmt in ("imagefolder", "tfrecord"):
        built = build_here("imagenet", root / "originals", root / f"{fmt}-ours", fmt)
        found[fmt] = str(shutil.copytree(built, root / fmt, ignore=shutil.ignore_patterns("dataset.json", "index")))
    return found


@pytest.mark.parametrize(
    ("entry", "read"),
    [("dataprep-train-resnet", KINDS), pytest.param("dataprep-pretrain-mae", KINDS, marks=pytest.mark.long)],
)
def test_the_documented_command_line_runs_on_every_kind_of_data(kinds, tmp_path, entry, read):
    given = json.dumps({kind: seed_command(entry, kinds[kind]) for kind in read})
    cache = str(tmp_path / "cache")
    with start("tests.train.test_seed_commands", entry, str(tmp_path), given, XDG_CACHE_HOME=cache) as process:
        _, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors[-3000:]
    for kind in read:
        lines = [json.loads(line) for line in (tmp_path / kind / "out/log.txt").read_text().splitlines()]
        *lines, end = lines
        assert end["ended"], kind
        assert lines[-1]["epoch"] == pytest.approx(1, abs=0.3), kind
        assert list((tmp_path / kind).glob("*/checkpoint-*.pth")), kind
        if entry == "dataprep-train-resnet":
            assert {"val_accuracy"} <= lines[-1].keys(), kind


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_documented_command_line_is_understood(entry):
    ENTRIES[entry].make_context(entry, seed_command(entry, "data"))


def run(entry: str, folder: Path, arguments_of: dict[str, list[str]]) -> None:
    """Each in a folder of its own; the compiler meets the same graphs again."""
    for kind, arguments in arguments_of.items():
        (folder / kind).mkdir()
        os.chdir(folder / kind)
        ENTRIES[entry].main(arguments, standalone_mode=False)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
