"""Checkpoints in a folder or bucket: whole or absent, and read only after their digest was compared.

    checkpoint-000000400-5f2b8c6a90d1e37c.pth      state after 400 steps, the first 16 digits of its SHA-256
    checkpoint-000000400-0b7712ad5c3390fe.json     the same of one that is cut among hosts: see train/parts.py

The name is the commit: it is taken create-only by a file that is already whole, and a file of other bytes does not
match it. Reading a checkpoint runs no code of its own: PyTorch's with `weights_only`, NumPy's without pickles.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep.errors import FormatError, UsageError
from dataprep.storage import Storage, disk_errors, open_storage
from dataprep.storage.checksums import crc32c_of_file

_COPY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that stands in a folder; whether it is valid is not known yet."""

    name: str
    step: int
    digest: str
    """First 16 hexadecimal digits of the SHA-256 of its bytes."""

    @property
    def is_list(self) -> bool:
        """Whether it names parts, which hold the state."""
        return self.name.endswith(".json")


@dataclass(frozen=True, slots=True)
class Codec:
    """How a state becomes a file."""

    library: str
    suffix: str
    write: Callable[[dict[str, Any], Path], None]
    read: Callable[[Path], dict[str, Any]]
    """Raises whatever the library does."""

    def parse(self, name: str) -> Checkpoint | None:
        """What a name says; None where it is not a checkpoint's."""
        match = re.fullmatch(rf"checkpoint-(\d{{9,}})-([0-9a-f]{{16}})\.({self.suffix}|json)", name)
        return None if match is None else Checkpoint(name, int(match[1]), match[2])


def _write_torch(state: dict[str, Any], path: Path) -> None:
    import torch

    torch.save(state, path)


def _read_torch(path: Path) -> dict[str, Any]:
    import torch

    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _write_numpy(state: dict[str, Any], path: Path) -> None:
    import numpy as np

    document = json.dumps({name: value for name, value in state.items() if name != ARRAYS}).encode()
    with path.open("wb") as file:  # to a path NumPy would add a suffix
        np.savez(file, allow_pickle=False, **{DOCUMENT: np.frombuffer(document, np.uint8)}, **state[ARRAYS])


def _read_numpy(path: Path) -> dict[str, Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    document: dict[str, Any] = json.loads(arrays.pop(DOCUMENT).tobytes())
    return document | {ARRAYS: arrays}


ARRAYS, DOCUMENT = "arrays", "document"
"""Of a state for NUMPY: its entry of arrays by their names; all others are one document in the file."""
TORCH = Codec("torch", "pth", _write_torch, _read_torch)
NUMPY = Codec("numpy", "npz", _write_numpy, _read_numpy)


class CheckpointFolder:
    """Writes, finds and reads checkpoints.

    Args:
        url: A folder or gs://bucket/prefix.
        keep: How many of the newest stay; at least one.
        codec: Of the framework that trains.
    """

    def __init__(self, url: str, *, keep: int = 3, codec: Codec = TORCH) -> None:
        if keep < 1:
            raise UsageError(f"--keep_checkpoints must be 1 or more, got {keep}")
        self._storage = open_storage(url)
        self._keep, self._codec = keep, codec

    @property
    def url(self) -> str:
        """Where they are."""
        return self._storage.url

    def list(self) -> list[Checkpoint]:
        """By step, the newest first."""
        found = (self._codec.parse(info.name) for info in self._storage.list())
        checkpoints = (each for each in found if each is not None)
        return sorted(checkpoints, key=lambda each: (each.step, each.digest), reverse=True)

    def save(self, step: int, state: dict[str, Any]) -> Checkpoint:
        """Write a state, then remove those that are too old. Killed anywhere, what was there before is still there.

        Args:
            step: Steps that were done.
            state: Dictionaries, lists, numbers, text, and tensors or arrays on the host.
        """
        storage = self._storage
        storage.remove_stale_spools()
        spool = storage.spool_path(f"checkpoint.{self._codec.suffix}")
        with disk_errors(spool):
            self._codec.write(state, spool)
            digest = digest_of(spool)
        checkpoint = Checkpoint(f"checkpoint-{step:09d}-{digest}.{self._codec.suffix}", step, digest)
        storage.publish(spool, checkpoint.name, crc32c_of_file(spool))
        self._forget_older(step)
        return checkpoint

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """A state as it was saved, tensors on the host.

        Raises:
            FormatError: The bytes are not those that the name says, or are no state.
        """
        if checkpoint.is_list:
            from train.parts import load_parts

            return load_parts(self._storage, checkpoint)
        with on_disk(self._storage, checkpoint.name) as path:
            return load_file(path, checkpoint.digest, self._codec)

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

    def _forget_older(self, step: int) -> None:
        # Newer ones are left: a run that went back to an older state may have found them damaged.
        older = [each for each in self.list() if each.step <= step][self._keep :]
        for each in older:
            self._storage.delete(each.name)
        if any(each.is_list for each in older):
            from train.parts import remove_unlisted_parts

            remove_unlisted_parts(self._storage, self.list())


def load_any(url: str) -> dict[str, Any]:
    """The whole state at a path or gs:// URL of one checkpoint; the digest is compared where the name holds one.

    Raises:
        UsageError: There is no such file.
        FormatError: It is damaged, or no state.
    """
    folder, _, name = url.rpartition("/")
    named = TORCH.parse(name)
    try:
        if named is not None:
            return CheckpointFolder(folder or ".").load(named)
        with on_disk(open_storage(folder or "."), name) as path:
            return load_file(path, None)
    except FileNotFoundError:
        raise UsageError(f"{url}: no checkpoint there; give the path or URL of one") from None


def load_file(path: Path, digest: str | None, codec: Codec = TORCH) -> dict[str, Any]:
    """Read one file.

    Raises:
        FormatError: It has another digest, or is no state.
    """
    if digest is not None and (found := digest_of(path)) != digest:
        raise FormatError(f"{path}: {path.stat().st_size:,} bytes of digest {found}, expected {digest}: damaged")
    try:
        return codec.read(path)
    except Exception as error:  # libraries raise whatever they meet in a damaged file
        reason = str(error).partition("\n")[0]
        raise FormatError(f"{path}: no state that {codec.library} can read ({reason})") from error


@contextlib.contextmanager
def on_disk(storage: Storage, name: str) -> Iterator[Path]:
    """A file itself, or a copy of an object. Raises FileNotFoundError."""
    if storage.is_local:
        if storage.stat(name) is None:
            raise FileNotFoundError(storage.url_of(name))
        yield Path(storage.url_of(name))
        return
    with tempfile.TemporaryDirectory(prefix="dataprep-checkpoint-") as folder:
        path = Path(folder) / name.rpartition("/")[2]
        with storage.open(name) as source, path.open("wb") as target:
            while block := source.read(_COPY_BYTES):
                target.write(block)
        yield path


def digest_of(path: Path) -> str:
    """The first 16 hexadecimal digits of a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
