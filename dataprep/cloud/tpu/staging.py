"""Packs a folder of code into an archive. The same files give the same bytes, so the archive is named by its digest."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from dataprep.errors import UsageError

MAX_BYTES = 256 * 2**20
"""Maximum size of all files together. Larger folders contain data, which would be copied to every worker."""
_LEFT_OUT = {
    ".git",
    ".hg",
    ".venv",
    "venv",
    "__pycache__",
    "node_modules",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
}
_DIGEST_CHARACTERS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """A `.tar.gz` of a folder."""

    name: str
    """Unique name, made of the folder's name and the beginning of the digest."""
    data: bytes
    sha256: str
    files: int


def pack(folder: Path) -> Archive:
    """Pack all files that git does not ignore; outside a repository all but environments and caches.

    Raises:
        UsageError: There are no files, more than MAX_BYTES, or a link that leads outside.
    """
    paths = _in_git(folder) or _in_folder(folder)
    sizes = {path: (folder / path).lstat().st_size for path in paths}
    if not sizes:
        raise UsageError(f"{folder}: no files; expected a folder of code")
    if sum(sizes.values()) > MAX_BYTES:
        largest = max(sizes, key=lambda path: sizes[path])
        raise UsageError(
            f"{folder}: {sum(sizes.values()) / 2**20:,.0f} MiB, expected code of at most {MAX_BYTES >> 20} MiB; the "
            f"largest is {largest} ({sizes[largest] / 2**20:,.0f} MiB): name data in .gitignore, put them in a bucket"
        )
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in paths:
            _add(tar, folder, path)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.resolve().name).strip("-.") or "code"
    return Archive(
        name=f"{stem}-{digest[:_DIGEST_CHARACTERS]}", data=buffer.getvalue(), sha256=digest, files=len(paths)
    )


def _in_git(folder: Path) -> list[str]:
    command = ["git", "-C", str(folder), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return []
    names = set(os.fsdecode(listed.stdout).split("\0")) - {""} if listed.returncode == 0 else set()
    return sorted(name for name in names if (folder / name).is_symlink() or (folder / name).is_file())


def _in_folder(folder: Path) -> list[str]:
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        found += [(Path(root) / name).relative_to(folder).as_posix() for name in files]
    return sorted(found)


def _add(tar: tarfile.TarFile, folder: Path, path: str) -> None:
    source = folder / path
    member = tarfile.TarInfo(path)
    if source.is_symlink():
        if not source.resolve().is_relative_to(folder.resolve()) or source.readlink().is_absolute():
            raise UsageError(f"{source}: a link to {source.readlink()}, outside the folder; expected no such links")
        member.type, member.linkname = tarfile.SYMTYPE, str(source.readlink())
        tar.addfile(member)
        return
    content = source.read_bytes()
    member.size, member.mode = len(content), 0o755 if os.access(source, os.X_OK) else 0o644
    tar.addfile(member, io.BytesIO(content))
