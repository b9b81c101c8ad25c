"""Files of checkpoints: their names, their digests, and how a state of PyTorch or NumPy becomes one.

    checkpoint-000000400-5f2b8c6a90d1e37c.pth      state after 400 steps, the first 16 digits of its SHA-256
    checkpoint-000000400-5f2b8c6a90d1e37c.npz      likewise, of JAX
    checkpoint-000000400-0b7712ad5c3390fe.json     list of the parts of a sharded checkpoint: see parts.py
    checkpoint-000000400.orbax/                    folder of an Orbax checkpoint, of JAX: see checkpoint.py

Reading a checkpoint never runs code from it, and believes no length that it states: PyTorch's are read by `_Pickle`
below instead of `torch.load` (docs/decisions/0024-own-reader-of-pth.md says why), NumPy's without pickles.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickletools
import re
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from dataprep.arrays import np
from dataprep.errors import FormatError, UsageError, install_hint
from dataprep.storage import Storage, disk_errors

if TYPE_CHECKING:
    import torch

State: TypeAlias = dict[str, Any]
"""Entries of a checkpoint by their names: tensors or arrays on the host, and JSON values."""
STATE_VERSION = 1
CLASSES = "classes"
"""Name of the entry with the names of the data's classes; checkpoints before 0.2.0 have none."""
_SHOWN_FLAGS = 3
"""Maximum number of flags in a message."""


def check_state(where: str, state: Mapping[str, Any], entries: Sequence[str]) -> None:
    """Check that a run saved a state, with the entries that the framework adds to every run's.

    Raises:
        UsageError: The state is something else, e.g. published weights, or has another version.
        FormatError: An entry is missing.
    """
    if "version" not in state:
        raise UsageError(f"{where}: {_contents(state)}, without the state of a run of this program; {_advice(state)}")
    if state["version"] != STATE_VERSION:
        raise UsageError(f"{where}: version {state['version']}, this program reads {STATE_VERSION}")
    if missing := [name for name in ("step", *entries, "loader", "description") if name not in state]:
        raise FormatError(f"{where}: no entry {missing[0]!r}; expected a checkpoint as a run saves it")


@contextlib.contextmanager
def taking_position(where: str) -> Iterator[None]:
    """Turn any error while the data position or the random state is restored into a FormatError that names the
    checkpoint."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FormatError(
            f"{where}: cannot restore the data position or the random state ({error}); expected a checkpoint as a run "
            "saves it: choose another checkpoint"
        ) from None


def _contents(state: Mapping[str, Any]) -> str:
    named = state.get("model", state)
    tensors = sum(hasattr(each, "shape") for each in named.values()) if isinstance(named, Mapping) else 0
    return f"weights ({tensors:,} tensors)" if tensors else f"no weights among its {len(state):,} entries"


def _advice(state: Mapping[str, Any]) -> str:
    named = state.get("model", state)
    if isinstance(named, Mapping) and "patch_embed.proj.weight" in named:
        return (
            "`resume` and `init` take checkpoints of a run; `dataprep-finetune-mae --finetune` starts from such weights"
        )
    return "`resume` and `init` need a checkpoint that a run saved"


def flags_of_its_run(changes: Sequence[str]) -> str:
    """Return the part of a message that names flags with other values in the run that saved a checkpoint."""
    return f"; its run had {', '.join(changes[:_SHOWN_FLAGS])}" if changes else ""


_COPY_BYTES = 8 << 20
_PROBE_BYTES = 8 << 20
"""More bytes than a full disk still takes after a write that failed."""
_ORBAX_NAME = re.compile(r"checkpoint-(\d{9,})\.orbax")
_MAX_PICKLE_BYTES = 64 << 20
"""Maximum size of the pickle in a checkpoint, which describes its tensors: ViT-10B's take 0.2 MB."""
_LENGTHS_AT = 26
"""Offset of the lengths of name and extra field in a zip archive's header of a file, whose bytes follow both."""
_MAX_COUNTS = 1 + 2 * 64
"""Maximum number of counts that describe a tensor: an offset, 64 lengths and 64 strides."""
_MAX_OVERLAP = 4
"""Largest ratio of the bytes of copied values to the bytes of their file, where values may share bytes."""
_DTYPES = {
    f"{name}Storage": dtype
    for name, dtype in {
        "Bool": "bool",
        "Byte": "uint8",
        "Char": "int8",
        "Short": "int16",
        "Int": "int32",
        "Long": "int64",
        "Half": "float16",
        "BFloat16": "bfloat16",
        "Float": "float32",
        "Double": "float64",
    }.items()
}
"""PyTorch's number formats by the names of their storages in a pickle."""


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
    advice: str = ""
    """Advice for messages about a file of an older format."""

    def parse(self, name: str) -> Checkpoint | None:
        """Return the checkpoint that a file's name describes; None if it is not the name of a checkpoint."""
        match = re.fullmatch(rf"checkpoint-(\d{{9,}})-([0-9a-f]{{16}})\.({self.suffix}|json)", name)
        return None if match is None else Checkpoint(name, int(match[1]), match[2])


def _write_torch(state: State, path: Path) -> None:
    import torch

    try:
        torch.save(state, path)
    except RuntimeError:  # does not say why: a disk that is full does not take these bytes either
        with path.open("ab") as file:
            file.write(bytes(_PROBE_BYTES))
        raise


def _read_torch(path: Path) -> State:
    _check_archive(path)
    with zipfile.ZipFile(path) as archive:
        state = _Pickle(path, archive).read()
    if not isinstance(state, dict):
        raise FormatError(f"{path}: holds a {type(state).__name__}, expected tensors by their names")
    return state


def _write_numpy(state: State, path: Path) -> None:
    document = json.dumps({name: value for name, value in state.items() if name != ARRAYS}).encode()
    with path.open("wb") as file:  # given a path, NumPy would add a suffix to it
        np.savez(file, allow_pickle=False, **{DOCUMENT: np.frombuffer(document, np.uint8)}, **state[ARRAYS])


def _read_numpy(path: Path) -> State:
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
    is_plain = all(
        each.compress_type == zipfile.ZIP_STORED and each.compress_size == each.file_size for each in entries
    )
    if stored_bytes > file_bytes or not is_plain or len({each.filename for each in entries}) < len(entries):
        raise FormatError(
            f"{path}: an archive of {file_bytes:,} bytes whose files declare {stored_bytes:,}, expected uncompressed "
            "files of different names; it is not a checkpoint"
        )


ARRAYS, DOCUMENT = "arrays", "document"
"""Entry of a NUMPY state that holds its arrays by name (ARRAYS), and array in its file that holds all other entries as
JSON (DOCUMENT)."""
ORBAX = ".orbax"
"""End of the name of a checkpoint by Orbax, which is a folder: see checkpoint.py."""
TORCH = Codec(
    "torch",
    "pth",
    _write_torch,
    _read_torch,
    ", an archive as torch.save writes it; convert a trusted file of torch before 1.6 by loading and saving it",
)
NUMPY = Codec("numpy", "npz", _write_numpy, _read_numpy)


def find_checkpoint(name: str) -> Checkpoint | None:
    """Return the checkpoint, of any kind, to which a file in a folder of checkpoints belongs; None if to none."""
    first, below, _ = name.partition("/")
    if below:
        match = _ORBAX_NAME.fullmatch(first)
        return None if match is None else Checkpoint(first, int(match[1]), "")
    return TORCH.parse(name) or NUMPY.parse(name)


def load_file(path: Path, digest: str | None, codec: Codec = TORCH) -> State:
    """Read the state in one file on a local disk; compare its digest unless that is None.

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
        raise FormatError(
            f"{path}: {num_bytes:,} bytes, not a state that {codec.library} reads: cut short, damaged, or another kind "
            f"of file; expected a .{codec.suffix} checkpoint{codec.advice}"
        ) from error


@dataclass(frozen=True, slots=True)
class _Name:
    """A name of a module that a pickle mentions, e.g. `collections.OrderedDict`; nothing is imported."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """Numbers in one file of an archive, shared by tensors."""

    numbers: torch.Tensor


@dataclass(slots=True)
class _Pickle:
    """Reader of the pickle in an archive that `torch.save` wrote, for plain values and tensors alone.

    A tensor is made where a pickle calls the function that rebuilds it, from a file of the archive whose true length
    was compared. No opcode can change it afterwards. Attributes of objects are left out.
    """

    path: Path
    archive: zipfile.ZipFile
    _folder: str = ""
    _stack: list[Any] = field(default_factory=list)
    _marks: list[list[Any]] = field(default_factory=list)
    _memo: dict[int, Any] = field(default_factory=dict)
    _storages: dict[str, _Storage] = field(default_factory=dict)
    _tensor_bytes: int = 0

    def read(self) -> Any:
        """Return the object. Raises FormatError if the pickle mentions an object of another kind, or a tensor is not in
        the file, and any exception if the pickle is damaged."""
        (name,) = (each for each in self.archive.namelist() if each.endswith("/data.pkl") and each.count("/") == 1)
        self._folder = name.removesuffix("data.pkl")
        if self._folder + "byteorder" in self.archive.namelist() and self._file("byteorder") != b"little":
            raise self._refused("it has numbers of another byte order")
        data = self._file("data.pkl")
        for opcode, argument, _ in pickletools.genops(data):
            self._do(opcode.name, argument)
        (state,) = self._stack
        self._check_size(state, len(data))
        return state

    def _do(self, opcode: str, argument: Any) -> None:
        stack = self._stack
        match opcode:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                self._marks.append(stack)
                self._stack = []
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode == "NEWTRUE")
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "TUPLE":
                items = self._marked()
                self._stack.append(tuple(items))
            case "APPEND":
                value = stack.pop()
                self._top(list).append(value)
            case "APPENDS":
                items = self._marked()
                self._top(list).extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._top(dict)[key] = value
            case "SETITEMS":
                items = self._marked()
                self._top(dict).update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(_Name(argument.replace(" ", ".")))
            case "BINPERSID":
                stack.append(self._storage(*stack.pop()))
            case "REDUCE" | "NEWOBJ":
                arguments, function = stack.pop(), stack.pop()
                stack.append(self._called(function, arguments))
            case "BUILD":
                stack.pop()
            case _:
                raise ValueError(f"opcode {opcode}, which torch.save does not write")

    def _marked(self) -> list[Any]:
        """Return the objects on the stack since the last mark."""
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _top(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise ValueError(f"items for a {type(self._stack[-1]).__name__}")
        return self._stack[-1]

    def _called(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return the result of one of the few known functions for arguments."""
        match function.name if isinstance(function, _Name) else "":
            case "torch._utils._rebuild_tensor_v2":
                return self._tensor(*arguments[:4])
            case "torch._utils._rebuild_parameter":
                return arguments[0]
            case "collections.OrderedDict" | "argparse.Namespace" if arguments == ():
                return {}  # of a state_dict; flags of MAE's own code
            case "torch.Size" if type(arguments[0]) is tuple:
                return arguments[0]
            case name:
                named = f"{name:.80}" if name.isprintable() else "a name of control characters"
                raise self._refused(
                    f"it holds {named or 'a call'}, which could run code; save tensors and plain values"
                )

    def _storage(self, kind: str, storage: _Name, key: str, _device: str, numel: int) -> _Storage:
        """Read a file from the archive and check that it has the declared length."""
        import torch

        dtype = _DTYPES.get(storage.name.removeprefix("torch."))
        if kind != "storage" or dtype is None:
            raise self._refused(f"it holds {storage.name}; save tensors of plain numbers")
        if key not in self._storages:
            numbers = self._bytes(self.archive.getinfo(f"{self._folder}data/{key}"))
            self._storages[key] = _Storage(numbers.view(getattr(torch, dtype)))
        numbers = self._storages[key].numbers
        if numbers.numel() != numel or str(numbers.dtype) != f"torch.{dtype}":
            raise self._refused(
                f"a storage declares {numel:,} numbers ({dtype}), the file has {numbers.numel():,} ({numbers.dtype})"
            )
        return self._storages[key]

    def _bytes(self, entry: zipfile.ZipInfo) -> torch.Tensor:
        """Return all bytes of an uncompressed file of the archive; `zipfile` copies them three times."""
        import torch

        found = torch.empty(entry.file_size, dtype=torch.uint8)
        with self.path.open("rb") as file:
            file.seek(entry.header_offset + _LENGTHS_AT)
            name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
            file.seek(name_bytes + extra_bytes, os.SEEK_CUR)
            count = file.readinto(found.numpy().data)
        if count != entry.file_size or zlib.crc32(found.numpy().data) != entry.CRC:
            raise ValueError(f"{entry.filename}: {count:,} of {entry.file_size:,} bytes, or changed bytes")
        return found

    def _tensor(self, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor over numbers of a storage, within its bounds and no larger than it."""
        numbers, counts = storage.numbers, (offset, *shape, *strides)
        if len(counts) > _MAX_COUNTS or not all(type(each) is int and 0 <= each < 1 << 63 for each in counts):
            raise self._refused("a tensor of an impossible shape")
        last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        values = prod(shape)
        self._tensor_bytes += values * numbers.itemsize
        if max(values, offset + last + 1 if values else offset) > numbers.numel():
            raise self._refused(f"a tensor of {values:,} values whose values are not all in the file")
        if self._tensor_bytes > _MAX_OVERLAP * self.path.stat().st_size:
            raise self._refused(f"tensors of {self._tensor_bytes:,} bytes, most of them shared")
        return numbers.as_strided(shape, strides, offset)

    def _check_size(self, state: Any, pickle_bytes: int) -> None:
        """Refuse values that are referred to so often, or by themselves, that nothing could print or copy them all."""
        rest, values = [state], 0
        while rest:
            each = rest.pop()
            values += 1
            if values > _MAX_OVERLAP * pickle_bytes:
                raise self._refused("its values contain each other")
            if isinstance(each, dict):
                rest.extend(each.values())
            elif isinstance(each, list | tuple):
                rest.extend(each)

    def _file(self, name: str) -> bytes:
        entry = self.archive.getinfo(self._folder + name)
        if entry.file_size > _MAX_PICKLE_BYTES:
            raise self._refused(f"{name} has {entry.file_size:,} bytes, expected at most {_MAX_PICKLE_BYTES:,}")
        return self.archive.read(entry)

    def _refused(self, reason: str) -> FormatError:
        return FormatError(f"{self.path}: not a state that torch reads: {reason}; it is not a checkpoint")


@contextlib.contextmanager
def on_disk(storage: Storage, name: str) -> Iterator[Path]:
    """Yield the path of a file, or of a temporary copy of an object on a local disk. Raises FileNotFoundError if there
    is no such file."""
    if storage.is_local:
        if storage.stat(name) is None:
            raise FileNotFoundError(storage.url_of(name))
        yield Path(storage.url_of(name))
        return
    with tempfile.TemporaryDirectory(prefix="dataprep-checkpoint-") as folder:
        path = Path(folder) / name.rpartition("/")[2]
        with storage.open(name) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)
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
