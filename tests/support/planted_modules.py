"""A folder, such as a downloaded dataset, with a file for every module that a program may import.

`CASES` are commands that a user runs inside such a folder: all commands and entries, and loaders with processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

BIN = Path(sys.executable).parent
LOADER = """
import sys
from loaders import open_loader
if __name__ == "__main__":
    with open_loader(sys.argv[1], split="train", batch_size=4, shuffle=False, image_size=32, processes=2) as loader:
        print(len(next(iter(loader)).keys))
"""
TRAIN = ("--data-path", ".", "--output-dir", "../run", "--max-steps", "1", "--batch-size", "2", "--device", "cpu")
SMALL = ("--embed-dim", "32", "--num-heads", "2", "--num-blocks", "1", "--image-size", "28")
CASES: dict[str, tuple[str, ...]] = {
    "verify": ("dataprep", "verify", ".", "--workers", "2"),
    "python -m": ("python", "-m", "dataprep", "verify", ".", "--workers", "2"),
    "loader": ("python", "../loader.py", "."),
    "build folder": (
        "dataprep",
        "build",
        "folder",
        "--source",
        "pictures",
        "--output",
        "../built",
        "--format",
        "tfrecord",
    ),
    "convert": ("dataprep", "convert", ".", "--output", "../converted", "--format", "tfrecord", "--workers", "2"),
    "adopt": ("dataprep", "adopt", "pictures", "--index", "../index"),
    "inspect": ("dataprep", "inspect", ".", "--html", "../page.html"),
    "card": ("dataprep", "card", ".", "--overwrite"),
    "replicate": ("dataprep", "replicate", ".", "--to", "../copy"),
    "demo-data": ("dataprep", "demo-data", "imagenet", "../demo", "--images", "300"),
    "watch": ("dataprep", "watch", ".", "--once"),
    "plan-input": (
        "dataprep",
        "plan-input",
        "--accelerator",
        "v5litepod-16",
        "--images-per-s",
        "9",
        "--dataset",
        "imagenet",
    ),
    "diagnose": (
        "dataprep",
        "diagnose",
        ".",
        "--seconds",
        "0.2",
        "--device",
        "cpu",
        "--model",
        "resnet18",
        "--processes",
        "2",
    ),
    "train vit": ("dataprep-train-vit", *TRAIN, *SMALL),
    "pretrain mae": ("dataprep-pretrain-mae", *TRAIN),
    "finetune mae": ("dataprep-finetune-mae", *TRAIN),
    "train resnet": ("dataprep-train-resnet", *TRAIN),
    "train resnet in JAX": ("dataprep-train-resnet-jax", "--workdir", "../jax", "--config.dataset.root", "."),
    "export": ("dataprep-export", "--help"),
}
"""Words by the name of a case. Whether a command succeeds does not matter, as long as it starts what it would start."""


def plant(folder: Path) -> None:
    """Plant a file for each top-level module of the standard library and of all installed packages.

    All but `dataprep`: Python itself takes `python -m dataprep` from the current folder.
    """
    for name in {*sys.stdlib_module_names, *packages_distributions()} - {"dataprep"}:
        if name.isidentifier():
            text = f"with open({str(folder.parent / 'ran')!r}, 'a') as f: f.write('{name}\\n')\nraise ImportError\n"
            folder.joinpath(f"{name}.py").write_text(text)


def planted_copy(dataset: Path, pictures: Path, work: Path) -> Path:
    """Copy a dataset, put pictures beside its shards, and plant modules in both."""
    folder = work / "downloaded"
    shutil.copytree(dataset, folder)
    shutil.copytree(pictures, folder / "pictures", dirs_exist_ok=True)
    plant(folder)
    work.joinpath("loader.py").write_text(LOADER)
    return folder


def run_inside(folder: Path, words: tuple[str, ...], timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a command with the folder as its current one, without the variable that keeps Python from looking there.

    A training that has not ended when the time is over is killed: it has started all its children by then.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = ["timeout", "--kill-after=10", str(timeout_s), str(BIN / words[0]), *words[1:]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def planted_that_ran(folder: Path) -> list[str]:
    """Return the names of planted modules that ran since the folder was made."""
    record = folder.parent / "ran"
    return sorted(set(record.read_text().split())) if record.exists() else []
