"""Checkpoints in a folder or bucket: whole or absent, and read only after their digest was compared.

    checkpoint-000000400-5f2b8c6a90d1e37c.pth      state after 400 steps, the first 16 digits of its SHA-256

The name is the commit: it is taken create-only by a file that is already whole, and a file of other bytes does not
match it. Reading a checkpoint runs no code of its own (`weights_only`).
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dataprep.errors import FormatError, UsageError
from dataprep.storage import Storage, disk_errors, open_storage
from dataprep.storage.checksums import crc32c_of_file

_NAME = re.compile(r"checkpoint-(\d{9,})-([0-9a-f]{16})\.pth")
_COPY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that stands in a folder; whether it is valid is not known yet."""

    name: str
    step: int
    digest: str
    """First 16 hexadecimal digits of the SHA-256 of its bytes."""


class CheckpointFolder:
    """Writes, finds and reads checkpoints.

    Args:
        url: A folder or gs://bucket/prefix.
        keep: How many of the newest stay; at least one.
    """

    def __init__(self, url: str, *, keep: int = 3) -> None:
        if keep < 1:
            raise UsageError(f"--keep_checkpoints must be 1 or more, got {keep}")
        self._storage = open_storage(url)
        self._keep = keep

    @property
    def url(self) -> str:
        """Where they are."""
        return self._storage.url

    def list(self) -> list[Checkpoint]:
        """By step, the newest first."""
        found = (_NAME.fullmatch(info.name) for info in self._storage.list())
        checkpoints = (Checkpoint(match[0], int(match[1]), match[2]) for match in found if match)
        return sorted(checkpoints, key=lambda each: (each.step, each.digest), reverse=True)

    def save(self, step: int, state: dict[str, Any]) -> Checkpoint:
        """Write a state, then remove those that are too old. Killed anywhere, what was there before is still there.

        Args:
            step: Steps that were done.
            state: Dictionaries, lists, numbers, text, and tensors on the host.
        """
        storage = self._storage
        storage.remove_stale_spools()
        spool = storage.spool_path("checkpoint.pth")
        with disk_errors(spool):
            torch.save(state, spool)
            digest = _digest(spool)
        checkpoint = Checkpoint(f"checkpoint-{step:09d}-{digest}.pth", step, digest)
        storage.publish(spool, checkpoint.name, crc32c_of_file(spool))
        # Newer ones are left: a run that went back to an older state may have found them damaged.
        older = [each for each in self.list() if each.step <= step]
        for each in older[self._keep :]:
            storage.delete(each.name)
        return checkpoint

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """A state as it was saved, tensors on the host.

        Raises:
            FormatError: The bytes are not those that the name says, or are no state.
        """
        with _on_disk(self._storage, checkpoint.name) as path:
            return load_file(path, checkpoint.digest)

    def newest_valid(self, tell: Callable[[str], None]) -> tuple[Checkpoint, dict[str, Any]] | None:
        """The newest one that can be read, and its state.

        Args:
            tell: Is given a line for each one that was skipped, which says why.
        """
        for checkpoint in self.list():
            try:
                return checkpoint, self.load(checkpoint)
            except (FormatError, FileNotFoundError) as error:
                tell(f"{error}; skipped")
        return None


def load_any(url: str) -> dict[str, Any]:
    """The state at a path or gs:// URL of one checkpoint; the digest is compared where the name holds one.

    Raises:
        UsageError: There is no such file.
        FormatError: It is damaged, or no state.
    """
    folder, _, name = url.rpartition("/")
    match = _NAME.fullmatch(name)
    try:
        with _on_disk(open_storage(folder or "."), name) as path:
            return load_file(path, match[2] if match else None)
    except FileNotFoundError:
        raise UsageError(f"--resume {url}: not found; give a checkpoint, or `automatic`") from None


def load_file(path: Path, digest: str | None) -> dict[str, Any]:
    """Read one file.

    Raises:
        FormatError: It has another digest, or is no state.
    """
    if digest is not None and (found := _digest(path)) != digest:
        raise FormatError(f"{path}: {path.stat().st_size:,} bytes of digest {found}, expected {digest}: damaged")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler meets
        reason = str(error).partition("\n")[0]
        raise FormatError(f"{path}: no state that torch can read ({reason})") from error
    return state


@contextlib.contextmanager
def _on_disk(storage: Storage, name: str) -> Iterator[Path]:
    """A file itself, or a copy of an object."""
    if storage.is_local:
        if storage.stat(name) is None:
            raise FileNotFoundError(storage.url_of(name))
        yield Path(storage.url_of(name))
        return
    with tempfile.TemporaryDirectory(prefix="dataprep-checkpoint-") as folder:
        path = Path(folder) / name
        with storage.open(name) as source, path.open("wb") as target:
            while block := source.read(_COPY_BYTES):
                target.write(block)
        yield path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
