"""Hostile checkpoints: files that run code, grow in memory, are cut short, or are not what their names say."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.attacks import Attack
from tests.support.memory_growth import MemoryGrowth

MEMORY_BYTES = 64 << 20
"""How much more a refusal may take: each of the files would make gigabytes."""


class _RunsCode:
    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._target,))


def refused(path: Path) -> str:
    """Both readers, of states and of weights, refuse it with one line, and no memory is filled."""
    from dataprep.errors import DataprepError
    from train.checkpoints.checkpoint import load_any
    from train.checkpoints.encoder_weights import read_weights

    growth = MemoryGrowth()
    for read in (load_any, read_weights):
        try:
            read(str(path))
        except DataprepError as error:
            line = str(error)
            assert "\n" not in line, line
            assert "weights_only" not in line, line
        else:
            raise AssertionError(f"{path.name} was read by {read.__name__}")
    grown = growth.bytes()
    assert grown < MEMORY_BYTES, f"{path.name}: {grown:,} bytes"
    return line


def run_code(folder: Path) -> str:
    """Pickles, in an archive and alone, that would touch a file."""
    import torch

    ran = folder / "ran"
    torch.save({"model": _RunsCode(ran)}, folder / "archive.pth")
    torch.save({"model": _RunsCode(ran)}, folder / "old.pth", _use_new_zipfile_serialization=False)
    (folder / "plain.pth").write_bytes(pickle.dumps(_RunsCode(ran)))
    for path in folder.glob("*.pth"):
        refused(path)
    assert not ran.exists()
    return "three pickles that run code: refused, nothing ran"


def declare_more(folder: Path) -> str:
    """Tensors of terabytes over some bytes, tensors of nowhere, and an archive that inflates to a gigabyte."""
    import torch

    refused(_saved(folder / "expanded.pth", torch.zeros(1).expand(10**12)))
    refused(_saved(folder / "meta.pth", torch.empty(10**6, 10**6, device="meta")))
    whole, bomb = _saved(folder / "whole.pth", torch.zeros(4)), folder / "bomb.pth"
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            is_data = name.endswith("data/0")
            target.writestr(name, bytes(256 << 20) if is_data else source.read(name))
    assert bomb.stat().st_size < 1 << 20
    return f"terabytes declared: refused; {refused(bomb)}"


def cut_short(folder: Path) -> str:
    """Every file that a copy which broke off may leave, also under the name of the whole one."""
    import torch

    from train.checkpoints.checkpoint import CheckpointFolder

    saved = CheckpointFolder(str(folder)).save(1, {"model": {"a": torch.arange(1000.0)}})
    whole = (folder / saved.name).read_bytes()
    lengths = (0, 1, 100, len(whole) // 2, len(whole) - 1)
    for length in lengths:
        (folder / "short.pth").write_bytes(whole[:length])
        refused(folder / "short.pth")
        (folder / saved.name).write_bytes(whole[:length])
        assert "damaged" in refused(folder / saved.name)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    (folder / saved.name).write_bytes(flipped)
    assert "damaged" in refused(folder / saved.name)
    return f"{len(lengths)} lengths and one bit: refused"


def lie_in_parts(folder: Path) -> str:
    """A list of parts whose digest is right, and that names files elsewhere, or is no list."""
    import hashlib

    (folder / "run").mkdir()
    documents: tuple[Any, ...] = (
        {"version": 1, "parts": ["parts/../../secret.pth"]},
        {"version": 1, "parts": ["/etc/passwd"]},
        {"version": 1, "parts": [{}]},
        {"version": 1},
        [],
        "parts",
        {"version": 1, "parts": []},
    )
    for document in documents:
        data = json.dumps(document).encode()
        name = f"checkpoint-000000001-{hashlib.sha256(data).hexdigest()[:16]}.json"
        (folder / "run" / name).write_bytes(data)
        refused(folder / "run" / name)
    return f"{len(documents)} lists of parts: refused"


def stand_in_the_way(folder: Path) -> str:
    """Folders, pipes and links to nowhere under a checkpoint's name: nothing is waited for."""
    (folder / "folder.pth").mkdir()
    os.mkfifo(folder / "pipe.pth")
    (folder / "link.pth").symlink_to(folder / "nowhere")
    for name in ("folder", "pipe", "link"):
        refused(folder / f"{name}.pth")
    return "a folder, a pipe, a broken link: refused"


def _saved(path: Path, tensor: Any) -> Path:
    import torch

    torch.save({"model": {"a": tensor}}, path)
    return path


ATTACKS: list[Attack] = [
    Attack(name, run, sampled=True)
    for name, run in dict[str, Callable[[Path], str]](
        {
            "pickles that run code": run_code,
            "tensors and archives that declare more than they hold": declare_more,
            "files that are cut short": cut_short,
            "lists of parts that lie": lie_in_parts,
            "what is no file": stand_in_the_way,
        }
    ).items()
]
