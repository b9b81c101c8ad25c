"""Hostile checkpoints: files that run code, grow in memory, are cut short, or are not what their names say."""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import zipfile
from collections import OrderedDict
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


class _Storage:
    """What a pickle says about a storage: its type, its file's name and its number of values."""

    def __init__(self, numel: Any, kind: str = "FloatStorage", key: Any = "0") -> None:
        self.numel, self.kind, self.key = numel, kind, key


class _Tensor:
    """What a pickle says about a tensor: storage, offset, shape, strides."""

    def __init__(self, storage: Any, *rest: Any) -> None:
        self._arguments = storage, *rest, False, OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        import torch

        return torch._utils._rebuild_tensor_v2, self._arguments


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        import torch

        if not isinstance(value, _Storage):
            return None
        return "storage", getattr(torch, value.kind), value.key, "cpu", value.numel


def _pickled(state: Any) -> bytes:
    out = io.BytesIO()
    _Pickler(out, protocol=2).dump(state)
    return out.getvalue()


def _archived(path: Path, document: bytes, *more: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """An archive as torch.save writes it, with 100 numbers (float32) in the file of its first storage."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in (("data.pkl", document), ("data/0", bytes(400)), ("version", b"3"), *more):
            archive.writestr(f"archive/{name}", data)
    return path


def _writing(state: Any, changes: bytes) -> bytes:
    """A pickle with opcodes after the one that makes the tensor, which would change it."""
    document = _pickled(state)
    calls = [at for opcode, _, at in pickletools.genops(document) if opcode.name == "REDUCE"]
    return document[: calls[-1] + 1] + changes + document[calls[-1] + 1 :]


def lie_about_lengths(folder: Path) -> str:
    """Storages and tensors beyond the bytes that are there: for reading, and for the pickle itself to write to."""
    import torch

    huge, numbers = 10**7, _Storage(100)
    tensors = {
        "storage": _Tensor(_Storage(huge), 0, (huge,), (1,)),
        "storage alone": _Tensor(_Storage(101), 0, (100,), (1,)),
        "terabytes": _Tensor(_Storage(1 << 40), 0, (1 << 40,), (1,)),
        "negative storage": _Tensor(_Storage(-1), 0, (100,), (1,)),
        "wide numbers": _Tensor(_Storage(100, "DoubleStorage"), 0, (100,), (1,)),
        "bytes as words": _Tensor(_Storage(400, "ByteStorage", "version"), 0, (400,), (1,)),
        "untyped": _Tensor(_Storage(400, "UntypedStorage"), 0, (400,), (1,)),
        "two types": [_Tensor(numbers, 0, (100,), (1,)), _Tensor(_Storage(50, "DoubleStorage"), 0, (50,), (1,))],
        "shape": _Tensor(numbers, 0, (huge,), (1,)),
        "offset": _Tensor(numbers, 1, (100,), (1,)),
        "negative offset": _Tensor(numbers, -100, (100,), (1,)),
        "stride": _Tensor(numbers, 0, (2, 50), (51, 1)),
        "negative stride": _Tensor(numbers, 0, (100,), (-1,)),
        "overflow": _Tensor(numbers, 0, (1 << 33, 1 << 33), (1, 1)),
        "overflow of bytes": _Tensor(numbers, 0, (1 << 62,), (4,)),
        "wrapping offset": _Tensor(numbers, (1 << 63) - 1, (2,), (1,)),
        "no integer": _Tensor(numbers, 0, (1 << 200,), (1,)),
        "dimensions": _Tensor(numbers, 0, (1,) * 10_000, (1,) * 10_000),
        "empty beyond the end": _Tensor(numbers, 101, (0,), (1,)),
        "expanded": _Tensor(numbers, 0, (1 << 30,), (0,)),
        "many views": [_Tensor(numbers, 0, (100,), (1,)) for _ in range(10_000)],
        "another's file": _Tensor(_Storage(100, key="../version"), 0, (100,), (1,)),
    }
    for name, tensor in tensors.items():
        refused(_archived(folder / f"{name}.pth", _pickled({"model": {"a": tensor}})))
    state = {"model": {"a": _Tensor(_Storage(huge), 0, (huge,), (1,))}}
    small = {"model": {"a": _Tensor(numbers, 0, (100,), (1,))}}
    item = b"J\x00\x00\x01\x00G" + bytes(8) + b"s"  # SETITEM [65536] = 0.0
    built = pickle.dumps((0, (huge,), (1,), 0), protocol=2)[2:-1] + b"b"  # BUILD, which is Tensor.set_
    refused(_archived(folder / "written.pth", _writing(state, item)))
    refused(_archived(folder / "item.pth", _writing(small, item)))
    refused(_archived(folder / "items.pth", _writing(small, b"(" + item[:-1] + b"u")))
    refused(_archived(folder / "built.pth", _writing(state, built)))
    whole = _pickled(small)
    refused(_archived(folder / "big.pth", whole, ("byteorder", b"big")))
    refused(_archived(folder / "deflated.pth", whole, compression=zipfile.ZIP_DEFLATED))
    loop = b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s."  # a dictionary that contains itself
    refused(_archived(folder / "loop.pth", loop))
    laughs = (
        b"\x80\x02}X\x01\x00\x00\x00a]q\x00" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(60)) + b"s."
    )
    refused(_archived(folder / "laughs.pth", laughs))
    refused(_archived(folder / "memo.pth", b"\x80\x02}r\xff\xff\xff\x7fh\x01."))
    twice = _archived(folder / "twice.pth", whole, ("data/1", bytes(400)))
    twice.write_bytes(twice.read_bytes().replace(b"data/1", b"data/0"))
    refused(twice)
    _lie_in_directory(folder / "directory.pth", _archived(folder / "y", whole).read_bytes())
    torch.save({"model": {"a": torch.zeros(3)}}, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    assert "of torch before 1.6" in refused(folder / "legacy.pth")
    return f"{len(tensors)} tensors and 12 archives that lie about lengths: refused"


def _lie_in_directory(path: Path, data: bytes) -> None:
    """Sizes and offsets of the archive's own directory that its bytes do not have, zip64's among them."""
    entry = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)  # of data/0
    extra = entry + 46 + int.from_bytes(data[entry + 28 : entry + 30], "little")
    for at, value in (
        (20, 0xFFFFFFFF),
        (24, 0xFFFFFFFF),
        (24, 404),
        (42, 0xFFFFFFF0),
        (42, len(data) - 4),
        (28, 0xFFFF),
    ):
        width = 2 if at == 28 else 4
        path.write_bytes(data[: entry + at] + value.to_bytes(width, "little")[:width] + data[entry + at + width :])
        refused(path)
    wide = b"\x01\x00\x10\x00" + (1 << 40).to_bytes(8, "little") * 2
    head = data[entry : entry + 20] + b"\xff" * 8 + data[entry + 28 : entry + 30] + len(wide).to_bytes(2, "little")
    path.write_bytes(data[:entry] + head + data[entry + 32 : extra] + wide + data[extra:])
    refused(path)


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


ATTACKS = [
    Attack("pickles that run code", run_code, sampled=True),
    Attack("tensors and archives that declare more than they hold", declare_more, sampled=True),
    Attack("lengths beyond the bytes that are there", lie_about_lengths, sampled=True),
    Attack("files that are cut short", cut_short, sampled=True),
    Attack("lists of parts that lie", lie_in_parts, sampled=True),
    Attack("what is no file", stand_in_the_way, sampled=True),
]
