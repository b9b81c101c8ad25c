"""Disks that are full for a while, or may only be read: one line says so, nothing is lost, and the rerun completes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataprep.demo.make import write_demo
from tests.attacks import Attack
from tests.support.builds import FORMATS, build, build_arguments, dataprep, digests, is_finished

SHARDS = ("--num-shards", 6, "--workers", 2)
NO_ROOT = "not run: mounting takes root"


@contextmanager
def _disk(folder: Path, options: str) -> Iterator[Path]:
    """A disk in memory, mounted below a folder."""
    disk = folder / "disk"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def _remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def _refused(*arguments: object, code: int = 1) -> str:
    """The one line with which a command ends that could not do its work."""
    run = dataprep(*arguments)
    assert run.returncode == code, (run.returncode, run.stderr[-800:])
    assert "Traceback" not in run.stderr, run.stderr[-800:]
    lines = [line for line in run.stderr.splitlines() if line.startswith("dataprep: ") and "warning" not in line]
    assert len(lines) == 1, run.stderr[-800:]
    return lines[0]


def _full_disk(folder: Path) -> str:
    """Half the room that a dataset takes, or half the inodes, until there is more."""
    if os.getuid():
        return NO_ROOT
    write_demo("coco", folder / "coco", images=110, odd=False)
    said = ""
    for fmt in FORMATS:
        build("coco-dup5", folder / "coco", folder / fmt, fmt, *SHARDS)
        expected = digests(folder / fmt)
        num_bytes = sum(path.stat().st_size for path in (folder / fmt).rglob("*") if path.is_file())
        small = [(f"size={num_bytes // 2}", "size=300m", "no space")]
        if fmt == "imagefolder":
            small.append((f"nr_inodes={len(expected) // 2}", "nr_inodes=100k", "inodes"))
        for options, more, words in small:
            with _disk(folder, options) as disk:
                arguments = build_arguments("coco-dup5", folder / "coco", disk / "out", fmt, *SHARDS)
                said = _refused(*arguments)
                assert words in said, said
                assert not is_finished(disk / "out")
                _remount(disk, more)
                assert dataprep(*arguments).returncode == 0
                assert digests(disk / "out") == expected
    return said


def _read_only_disk(folder: Path) -> str:
    """A dataset on a disk that may only be read is verified, and neither replaced nor damaged."""
    if os.getuid():
        return NO_ROOT
    write_demo("coco", folder / "coco", images=20, odd=False)
    with _disk(folder, "size=100m") as disk:
        build("coco-dup5", folder / "coco", disk / "out", "webdataset", *SHARDS)
        expected = digests(disk / "out")
        _remount(disk, "ro")
        assert dataprep("verify", disk / "out", "--deep").returncode == 0
        other = build_arguments("coco-dup5", folder / "coco", disk / "out", "webdataset", *SHARDS, "--seed", 3)
        said = _refused(*other, "--overwrite", code=2)
        assert "read-only" in said.lower(), said
        new = build_arguments("coco-dup5", folder / "coco", disk / "new", "webdataset", *SHARDS)
        assert "read-only" in _refused(*new, code=2).lower()
        assert digests(disk / "out") == expected
    return said


ATTACKS = [
    Attack("a disk that is full until there is more room", _full_disk),
    Attack("a disk that may only be read", _read_only_disk),
]
