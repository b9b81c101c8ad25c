"""Writes the pages of the reference: one for each command, one for each module that programs import.

What they say comes from the commands and docstrings themselves, when Sphinx reads the pages.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NamedTuple

from navigation import REFERENCE, ROOT

from dataprep.cli import COMMANDS
from dataprep.commands.train import ENTRIES


class Door(NamedTuple):
    """A module whose names other programs import."""

    title: str
    """What is found behind it, for the side bar."""
    names: tuple[str, ...] = ()
    """Names that the page describes; by default those of `__all__`, or the ones that the module defines."""


DOORS = {
    "dataprep": Door("building, verifying, converting and opening datasets"),
    "loaders": Door("batches of a dataset"),
    "loaders.torch": Door("batches for PyTorch"),
    "loaders.xla": Door("batches for PyTorch/XLA"),
    "loaders.jax": Door("batches for JAX"),
    "loaders.tf": Door("batches for tf.data"),
    "loaders.grain": Door("batches for Grain"),
    "dataprep.sources": Door(
        "a class for data of your own", ("ImageDataset", "Image", "Feature", "SplitFacts", "images_in")
    ),
    "dataprep.dataset.manifest": Door("reading a manifest", ("read_manifest",)),
    "dataprep.dataset.records": Door("what a manifest holds", ("Manifest", "SplitManifest", "ShardEntry")),
    "dataprep.storage": Door("disks and buckets", ("ObjectInfo", "Storage", "open_storage")),
    "dataprep.verification.run": Door("comparing a dataset with its manifest", ("Progress", "Report", "verify")),
    "dataprep.errors": Door("errors and their exit codes"),
    "pipelines.engines": Door("engines of builds"),
}
"""The modules, in the order of the side bar."""
SCRIPTS = {
    entry.script: f"train.{entry.script.removeprefix('dataprep-').replace('-', '_')}" for entry in ENTRIES.values()
}
"""Modules of the training programs by the names of their console scripts."""


def described(module: str) -> list[str]:
    """Return the names of a module that the reference describes."""
    return list(DOORS[module].names or getattr(importlib.import_module(module), "__all__", ()))


def write_pages() -> list[str]:
    """Write the pages of the reference; return their names."""
    pages = {
        f"commands/{name}": _command_page(f"dataprep {name}", f"dataprep.commands.{name.replace('-', '_')}")
        for name in COMMANDS
    }
    pages |= {f"commands/{script}": _command_page(script, module) for script, module in SCRIPTS.items()}
    pages |= {f"api/{module}": _module_page(module, door) for module, door in DOORS.items()}
    pages["commands/index"] = _index("Commands", _COMMANDS_TEXT, [*COMMANDS, *SCRIPTS])
    pages["api/index"] = _index("Python", _API_TEXT, [*DOORS])
    folder = ROOT / REFERENCE
    for path in folder.rglob("*.rst"):
        if path.relative_to(folder).with_suffix("").as_posix() not in pages:
            path.unlink()
    for name, text in pages.items():
        _write(folder / f"{name}.rst", text)
    return [f"{REFERENCE}/{name}" for name in pages]


_COMMANDS_TEXT = "Every command with its options. ``--help`` prints the same on a terminal."
_API_TEXT = (
    "The modules that programs import. What is not described here, and every name that begins with an underscore, may "
    "change in any version."
)


def _command_page(program: str, module: str) -> str:
    return f".. click:: {module}:command\n   :prog: {program}\n   :nested: full\n"


def _module_page(module: str, door: Door) -> str:
    names = described(module)
    found = importlib.import_module(module)
    for name in names:  # Sphinx does not find what is imported when it is first used
        vars(found).setdefault(name, getattr(found, name))
    members = f" {', '.join(names)}" if names else ""
    heading = _heading(f"{module}: {door.title}")
    return f"{heading}.. automodule:: {module}\n   :members:{members}\n"


def _index(title: str, text: str, pages: list[str]) -> str:
    lines = "\n".join(f"   {page}" for page in pages)
    return f"{_heading(title)}{text}\n\n.. toctree::\n   :maxdepth: 1\n\n{lines}\n"


def _heading(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"


def _write(path: Path, text: str) -> None:
    """Write a page if it has changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
