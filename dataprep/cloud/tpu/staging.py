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
        UsageError: There are no files, more than MAX_BYTES, a link that leads outside, or a file that cannot be read or
            is gone by then.
    """
    try:
        return _packed(folder, _in_git(folder) or _in_folder(folder))
    except OSError as error:
        raise UsageError(
            f"{error.filename}: {error.strerror}, while {folder} is packed; expected files that nobody changes "
            "meanwhile: run it again, or name what other programs write in .gitignore"
        ) from None


def _packed(folder: Path, paths: list[str]) -> Archive:
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
    return sorted(name for name in names if _is_packed(folder / name))


def _in_folder(folder: Path) -> list[str]:
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        found += [path.relative_to(folder).as_posix() for name in files if _is_packed(path := Path(root) / name)]
    return sorted(found)


def _is_packed(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


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
