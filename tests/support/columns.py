"""Columns that tests write themselves, with values that follow from a sample's key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from dataprep.dataset.column_files import (
    COLUMN_JSON,
    COLUMN_VERSION,
    Column,
    ColumnType,
    arrow_file,
    column_file,
    placed,
    publish_values,
    shard_id,
)
from dataprep.dataset.index import open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.storage import open_storage


def of_key(kind: ColumnType, key: str) -> Any:
    """Return the value of a type for a key."""
    digest = hashlib.sha256(key.encode()).digest()
    if kind.kind == "text":
        return f"{key} \N{CAT FACE}" * (digest[0] % 4)
    if kind.kind == "bytes":
        return digest[: digest[0] % 9]
    shape = tuple(length or digest[0] % 5 for length in kind.shape)
    numbers = np.resize(np.frombuffer(digest, np.uint8), shape)
    return (numbers > 99) if kind.dtype == "bool" else (numbers // 2).astype(kind.dtype)


def write_column(
    url: object, name: str, kind: ColumnType, value: Callable[[ColumnType, str], Any] = of_key, *, shards: int = 10**9
) -> None:
    """Write a column with a value for each sample of the first `shards` shards of each split."""
    storage = open_storage(str(url))
    manifest, splits = read_manifest(storage), {}
    for split in manifest.splits:
        index, files = open_index(storage, split), []
        for number in range(min(shards, len(split.shards))):
            keys = index.read_group(number, ["key"]).column("key").to_pylist()
            data = arrow_file(kind, [value(kind, key) for key in keys])
            files.append(placed(kind, data, shard_id(split, number), name, split.name))
            publish_values(storage, files[-1], data)
        splits[split.name] = tuple(files)
    column = Column(
        version=COLUMN_VERSION,
        name=name,
        plan_hash=manifest.plan_hash,
        function="tests:of_key",
        function_version="1",
        type=kind,
        splits=splits,
    )
    file, text = column_file(name, COLUMN_JSON), json.dumps(asdict(column)).encode()
    assert storage.replace(file, text, storage.read(file) if storage.stat(file) else None)
    storage.remove_stale_spools()
