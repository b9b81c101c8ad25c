"""Files of checkpoints: their names, their digests, and how a state of PyTorch or NumPy becomes one.

    checkpoint-000000400-5f2b8c6a90d1e37c.pth      state after 400 steps, the first 16 digits of its SHA-256
    checkpoint-000000400-5f2b8c6a90d1e37c.npz      likewise, of JAX
    checkpoint-000000400-0b7712ad5c3390fe.json     list of the parts of one that is sharded among hosts: see parts.py
    checkpoint-000000400.orbax/                    folder of one by Orbax, of JAX: see orbax_folder.py

Reading a checkpoint never runs code from it: PyTorch's are read with `weights_only`, NumPy's without pickles.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dataprep.errors import FormatError, UsageError, install_hint
from dataprep.storage import Storage, disk_errors
from train.checkpoints.state import State

_COPY_BYTES = 8 << 20
_ORBAX_NAME = re.compile(r"checkpoint-(\d{9,})\.orbax")
_REFUSED_GLOBAL = re.compile(r"(?:GLOBAL|class) ([\w.]+) ")
"""Pattern that finds the type in torch's message about an object that it refuses to load."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in a folder; whether it is valid is not known yet."""

    name: str
    step: int
    digest: str
    """First 16 hexadecimal digits of the SHA-256 of its bytes; empty for a folder by Orbax."""

    @property
    def is_jax(self) -> bool:
        """Whether JAX wrote it."""
        return self.name.endswith((f".{NUMPY.suffix}", ORBAX))

    @property
    def is_list(self) -> bool:
        """Whether this file is a list of parts, which hold the state."""
        return self.name.endswith(".json")


@dataclass(frozen=True, slots=True)
class Codec:
    """File format of a state: how it is written and read."""

    library: str
    suffix: str
    write: Callable[[State, Path], None]
    read: Callable[[Path], State]
    """Function that reads a state; it raises whatever its library raises."""

    def parse(self, name: str) -> Checkpoint | None:
        """Return the checkpoint that a file's name describes; None if it is not the name of a checkpoint."""
        match = re.fullmatch(rf"checkpoint-(\d{{9,}})-([0-9a-f]{{16}})\.({self.suffix}|json)", name)
        return None if match is None else Checkpoint(name, int(match[1]), match[2])


def _write_torch(state: State, path: Path) -> None:
    import torch

    torch.save(state, path)


def _read_torch(path: Path) -> State:
    import torch

    _check_archive(path)
    # Checkpoints of MAE's own code hold their flags, a Namespace, which is data.
    with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
        warnings.simplefilter("ignore")  # a warning about a pickle's protocol; `weights_only` checks its content
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise FormatError(f"{path}: holds a {type(state).__name__}, expected tensors by their names")
    _check_tensors(path, state)
    return state


def _write_numpy(state: State, path: Path) -> None:
    import numpy as np

    document = json.dumps({name: value for name, value in state.items() if name != ARRAYS}).encode()
    with path.open("wb") as file:  # given a path, NumPy would add a suffix to it
        np.savez(file, allow_pickle=False, **{DOCUMENT: np.frombuffer(document, np.uint8)}, **state[ARRAYS])


def _read_numpy(path: Path) -> State:
    import numpy as np

    _check_archive(path)
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    document: State = json.loads(arrays.pop(DOCUMENT).tobytes())
    return document | {ARRAYS: arrays}


def _check_archive(path: Path) -> None:
    """Refuse an archive that would take more memory than disk: both libraries write their archives uncompressed."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    stored_bytes, file_bytes = sum(each.file_size for each in entries), path.stat().st_size
    if stored_bytes > file_bytes or any(each.compress_type != zipfile.ZIP_STORED for each in entries):
        raise FormatError(
            f"{path}: an archive of {file_bytes:,} bytes whose files declare {stored_bytes:,}, expected uncompressed "
            "files; it is not a checkpoint"
        )


def _check_tensors(path: Path, state: dict[Any, Any]) -> None:
    """Refuse tensors whose values are not all in the file, because they grow when they are copied."""
    import torch

    rest: list[Any] = [state]
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            rest.extend(each.values())
        elif isinstance(each, list | tuple):
            rest.extend(each)
        elif isinstance(each, torch.Tensor):
            is_plain = each.device.type == "cpu" and each.layout is torch.strided and not each.is_quantized
            if not is_plain or each.nbytes > each.untyped_storage().nbytes():
                raise FormatError(
                    f"{path}: a tensor of {each.nbytes:,} bytes whose values are not all in the file; expected plain "
                    "tensors; it is not a checkpoint"
                )


ARRAYS, DOCUMENT = "arrays", "document"
"""Entry of a NUMPY state that holds its arrays by name (ARRAYS), and array in its file that holds all other entries as
JSON (DOCUMENT)."""
ORBAX = ".orbax"
"""End of the name of a checkpoint by Orbax, which is a folder: see orbax_folder.py."""
TORCH = Codec("torch", "pth", _write_torch, _read_torch)
NUMPY = Codec("numpy", "npz", _write_numpy, _read_numpy)


def find_checkpoint(name: str) -> Checkpoint | None:
    """Return the checkpoint, of any kind, to which a file in a folder of checkpoints belongs; None if to none."""
    first, below, _ = name.partition("/")
    if below:
        match = _ORBAX_NAME.fullmatch(first)
        return None if match is None else Checkpoint(first, int(match[1]), "")
    return TORCH.parse(name) or NUMPY.parse(name)


def load_file(path: Path, digest: str | None, codec: Codec = TORCH) -> State:
    """Read the state in one file.

    Args:
        path: Path on a local disk.
        digest: Digest that the file must have; None: it is not compared.
        codec: File format of the state.

    Raises:
        FormatError: The file has another digest, or is not a state.
        UsageError: The library that reads it is not installed.
    """
    if digest is not None and (found := digest_of(path)) != digest:
        raise FormatError(f"{path}: {path.stat().st_size:,} bytes of digest {found}, expected {digest}: damaged")
    with disk_errors(path), path.open("rb"):
        num_bytes = path.stat().st_size
    try:
        return codec.read(path)
    except FormatError:
        raise
    except ImportError:
        raise UsageError(f"{path}: needs {codec.library}: {install_hint(codec.library)}") from None
    except Exception as error:  # a damaged file can make the libraries raise anything
        reason = (
            f"cut short, damaged, or another kind of file; expected a .{codec.suffix} checkpoint"
            if (refused := _REFUSED_GLOBAL.search(str(error))) is None
            else f"it holds {refused[1]}, which could run code; save tensors and plain values alone"
        )
        raise FormatError(f"{path}: {num_bytes:,} bytes, not a state that {codec.library} reads: {reason}") from error


@contextlib.contextmanager
def on_disk(storage: Storage, name: str) -> Iterator[Path]:
    """Yield the path of a file, or of a temporary copy of an object on a local disk.

    Raises:
        FileNotFoundError: There is no such file.
    """
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
    """Return the first 16 hexadecimal digits of a file's SHA-256."""
    with path.open("rb") as file:
        return digest_of_stream(file)


def digest_of_stream(file: BinaryIO) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a stream's bytes."""
    return hashlib.file_digest(file, "sha256").hexdigest()[:16]  # type: ignore[arg-type]


def digest_of_folder(storage: Storage) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of what `sha256sum` prints of all files, sorted by name."""
    listing = hashlib.sha256()
    for name in sorted(info.name for info in storage.list()):
        with storage.open(name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        listing.update(f"{digest}  {name}\n".encode())
    return listing.hexdigest()[:16]
