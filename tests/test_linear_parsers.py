"""Twice as much of what a stranger writes takes twice as many operations to read, not four times as many."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dataset.index import index_schema, open_index_file
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import DataprepError
from dataprep.formats.example import bytes_feature, features_of, map_entry, message
from dataprep.formats.tars import tar_members
from dataprep.sources.archives import zip_members
from dataprep.sources.coco_annotations import CocoAnnotations, coco_features
from dataprep.sources.coco_files import top_level_items
from dataprep.sources.image_tables import ImageTable, columns_of, table_rows
from dataprep.sources.imagenet_labels import _class_of_boxes
from dataprep.sources.tables import MetadataFile, measure_table, read_part, rows_of
from dataprep.storage import open_storage
from dataprep.web.consent import rules_of
from loaders.mixtures.dataset import read_spec
from tests.support.coco import small_documents, write_small
from tests.support.raw_tar import tar_of
from tests.support.raw_zip import Entry, zip_file

SIZE = 150
OF_ALL = {"count", "index", "remove", "insert", "split", "splitlines", "replace", "join", "copy", "sort"}
"""Methods that read, or move, all that their object holds."""


class Archive:
    archive = "a"

    def __init__(self, data: bytes) -> None:
        self.data, self.num_bytes = data, len(data)

    def read(self, offset: int, num_bytes: int) -> bytes:
        return self.data[offset : offset + num_bytes]

    read_apart = read


def operations(read: Callable[[], object]) -> int:
    """Count lines and calls; a built-in method that reads all of its object counts as often as that is long."""
    count = 0

    def traced(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    def profiled(frame: Any, event: str, called: Any) -> None:
        nonlocal count
        if event == "c_call":
            held = getattr(called, "__self__", None)
            is_of_all = called.__name__ in OF_ALL and isinstance(held, list | tuple | str | bytes | bytearray)
            count += 1 + (len(held) if is_of_all else 0)

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(traced)
    sys.setprofile(profiled)
    try:
        read()
    finally:
        sys.setprofile(before[1])
        sys.settrace(before[0])
    return count


def metadata(name: str, text: str) -> None:
    data = text.encode()
    with suppress(DataprepError):
        list(rows_of(MetadataFile((), f"/data/{name}", len(data), partial(io.BytesIO, data)), lambda error: None))


def a_table(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    storage = open_storage(str(folder))
    with suppress(DataprepError):
        read_part(storage, measure_table(storage, name, 10**6), 0)


def parquet(folder: Path, columns: int, rows: int, group: int) -> Path:
    path = folder / "t.parquet"
    pq.write_table(pa.table({f"c{number}": ["x"] * rows for number in range(columns)}), path, row_group_size=group)
    return path


def image_table(path: Path) -> None:
    table = ImageTable(open_storage(str(path.parent)), path.name, path.stat().st_size)
    columns_of(table)
    list(table_rows(table, "c0", only_paths=True))


def coco(folder: Path, size: int) -> Callable[[], object]:
    documents = json.loads(json.dumps(small_documents()))
    for document in documents.values():
        document["annotations"] = [
            {**each, "id": 10_000 * number + each.get("id", 0)} if "id" in each else each
            for number in range(size)
            for each in document["annotations"]
        ]
    kinds = ("captions",)
    write_small(folder, {"captions": documents["captions"]})
    storage = open_storage(str(folder))

    def read() -> None:
        with CocoAnnotations(storage, "val2017", kinds, coco_features(kinds)) as found:
            found.of("000000000007.jpg")

    return read


def manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> Callable[[], object]:
    digest, entry = "0" * 64, {"bytes": 1, "sha256": "0" * 64}
    split = {
        **{"name": "train", "samples": 1, "num_bytes": 1, "shards": [], "class_counts": [], "repaired": {}},
        **{"rejected": {}, "repeats": {"count": 1, "stored": 1}},
        **{
            "index": {"file": "index/train.parquet", **entry},
            "events": {"file": "index/train-events.parquet", **entry},
        },
    }
    document = {
        **{"name": "n", "schema_version": "1.1", "revision": 0, "format": "webdataset", "plan_hash": digest},
        **{"order_version": 1, "options": {}, "sources": [], "codecs": {}, "licence": "", "origin": "", "classes": []},
        **{"shuffled": True, "checked": "decode", "partial": False, "splits": [split], "files": []},
    }
    change(document)
    (folder / "dataset.json").write_text(json.dumps(document))
    return lambda: read_manifest(open_storage(str(folder)))


def mixture(folder: Path, size: int) -> Callable[[], object]:
    datasets = [{"url": f"d{number}", "name": f"n{number}", "weight": 1} for number in range(size)]
    (folder / "mix.json").write_text(json.dumps({"version": 1, "datasets": datasets}))

    def read() -> None:
        with suppress(DataprepError):
            read_spec(str(folder / "mix.json"))

    return read


def shards(size: int) -> list[dict[str, Any]]:
    values = {"samples": 1, "bytes": 1, "sha256": "0" * 64, "crc32c": "AAAAAA=="}
    return [{"file": f"train/{number}.tar", **values} for number in range(size)]


def index(folder: Path, size: int) -> Callable[[], object]:
    row = {field.name: "k" if pa.types.is_string(field.type) else 0 for field in index_schema()}
    table = pa.Table.from_pylist([row] * size, index_schema())
    pq.write_table(table, folder / "t.parquet", row_group_size=1)
    return lambda: list(open_index_file(open_storage(str(folder)), "t.parquet").batches(["key"]))


def example(size: int) -> Callable[[], object]:
    entries = b"".join(map_entry(b"f%d" % number, bytes_feature(b"x")) for number in range(size))
    data = message(b"\x0a", entries)
    return partial(features_of, lambda offset, count: data[offset : offset + count], 0, len(data))


def tar(size: int) -> Callable[[], object]:
    data = tar_of([(f"{number}.jpg", b"x") for number in range(size)])
    return lambda: list(tar_members(Archive(data)))


def stream(size: int) -> Callable[[], object]:
    data = json.dumps({"a": [{"b": number} for number in range(size)]}).encode()
    return lambda: list(top_level_items(io.BytesIO(data), "a.json"))


def header(size: int) -> str:
    return ",".join(["file_name", *names(size), "z", "z"]) + "\n"


def fields(size: int) -> str:
    return '{"file_name":"a",' + "".join(f'"{name}":0,' for name in names(size)) + '"z":0,"z":0}\n'


def names(size: int) -> Iterator[str]:
    return (f"{number:05}" for number in range(size))


PARSERS: dict[str, Callable[[Path, int], Callable[[], object]]] = {
    "zip": lambda _, n: partial(zip_members, Archive(zip_file([Entry(name=b"%d.jpg" % i) for i in range(n)]))),
    "tar": lambda _, n: tar(n),
    "Example of a TFRecord": lambda _, n: example(n),
    "JSON stream": lambda _, n: stream(n),
    "CSV header of metadata": lambda _, n: partial(metadata, "metadata.csv", header(n)),
    "CSV rows of metadata": lambda _, n: partial(metadata, "metadata.csv", "file_name,b\n" + "a.jpg,c\n" * n),
    "fields of a JSON line": lambda _, n: partial(metadata, "metadata.jsonl", fields(n)),
    "JSON lines of metadata": lambda _, n: partial(metadata, "metadata.jsonl", '{"file_name":"a.jpg","b":1}\n' * n),
    "CSV header of a table": lambda folder, n: partial(a_table, folder, "t.csv", header(n)),
    "CSV rows of a table": lambda folder, n: partial(a_table, folder, "t.csv", "url,b\n" + "http://h/a,c\n" * n),
    "columns of parquet": lambda folder, n: partial(image_table, parquet(folder, n // 2, 2, 2)),
    "row groups of parquet": lambda folder, n: partial(image_table, parquet(folder, 2, n, 1)),
    "COCO annotations": coco,
    "groups of robots.txt": lambda _, n: partial(rules_of, "a", 200, b"User-agent: b\nDisallow: /x\n" * n),
    "rules of robots.txt": lambda _, n: partial(
        rules_of, "a", 200, b"User-agent: *\n" + b"".join(b"Disallow: /%d*x\n" % i for i in range(n))
    ),
    "XML of boxes": lambda _, n: partial(
        _class_of_boxes,
        b"<annotation>" + b"<object><name>n01440764</name></object>" * n + b"</annotation>",
    ),
    "shards of a manifest": lambda folder, n: manifest(folder, lambda it: it["splits"][0].update(shards=shards(n))),
    "options of a manifest": lambda folder, n: manifest(folder, lambda it: it.update(options={"x": [[]] * n})),
    "classes of a manifest": lambda folder, n: manifest(folder, lambda it: it.update(classes=list(names(n)))),
    "index": index,
    "mix.json": mixture,
}


@pytest.mark.parametrize("name", PARSERS)
def test_twice_the_input_takes_at_most_twice_the_operations(name, tmp_path):
    counts = []
    for size in (SIZE, 2 * SIZE, 4 * SIZE):
        folder = tmp_path / str(size)
        folder.mkdir()
        read = PARSERS[name](folder, size)
        read()  # what is imported and compiled at the first call is not counted
        counts.append(operations(read))
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    assert second <= 2.3 * max(first, SIZE), counts


def test_a_count_in_a_loop_is_seen():
    def quadratic(size: int) -> list[str]:
        values = list(names(size))
        return [value for value in values if values.count(value) > 1]

    once, twice = (operations(partial(quadratic, size)) for size in (SIZE, 2 * SIZE))
    assert twice > 3.5 * once
