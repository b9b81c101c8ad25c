"""Small tables of images as users and the Hugging Face Hub have them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.own_data import annotated_rows, picture, write_files

BREEDS = ("beagle", "pug", "husky")
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def hub_schema(types: Mapping[str, Any], classes: Mapping[str, Sequence[str]]) -> pa.Schema:
    """A schema with the description of columns that Hugging Face's libraries store."""
    described: dict[str, Any] = {name: {"_type": "Image"} for name, kind in types.items() if kind is IMAGE}
    described |= {name: {"names": list(names), "_type": "ClassLabel"} for name, names in classes.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": described}})}
    return pa.schema(list(types.items()), metadata=metadata)


def write_hub(path: Path, rows: Sequence[Mapping[str, Any]], classes: Sequence[str] = BREEDS, **options: Any) -> Path:
    """Write one parquet file as the Hub has them: image, label and caption."""
    types = {"image": IMAGE, "label": pa.int64(), "caption": pa.string()}
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([dict(row) for row in rows], hub_schema(types, {"label": classes}))
    pq.write_table(table, path, **options)
    return path


def hub_rows(count: int, first: int = 0, *, paths: bool = True) -> list[dict[str, Any]]:
    """Rows of `write_hub`."""
    return [
        {
            "image": {"bytes": picture(number, size=(20 + number, 16)), "path": f"{number}.jpg" if paths else None},
            "label": number % len(BREEDS),
            "caption": f"dog {number}",
        }
        for number in range(first, first + count)
    ]


def hub(root: Path) -> Path:
    """Write tables of two splits, train in two files of several row groups."""
    for number in range(2):
        name = f"data/train-0000{number}-of-00002.parquet"
        write_hub(root / name, hub_rows(5, 10 * number), row_group_size=2)
    write_hub(root / "data/validation-00000-of-00001.parquet", hub_rows(3, 50))
    return write_files(root, {"README.md": "---\n"})


def write_dogs(root: Path, count: int = 80) -> None:
    """Write a table of bytes with a value of every kind, in two files and a split; one picture is of another kind."""
    rows = [
        {
            **{name: value for name, value in row.items() if name != "file_name"},
            "image": {"bytes": picture(n, "PNG" if n % 20 == 7 else "JPEG", (32 + n, 24)), "path": f"{n}.jpg"},
            "label": BREEDS[n % len(BREEDS)],
        }
        for n, row in enumerate(annotated_rows(count))
    ]
    cut = count // 2, count * 3 // 4
    parts = {"train-0": rows[: cut[0]], "train-1": rows[cut[0] : cut[1]], "validation-0": rows[cut[1] :]}
    for name, chosen in parts.items():
        path = root / f"data/{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(chosen), path, row_group_size=7)


def listed(root: Path, kind: str = "csv", count: int = 4) -> Path:
    """Write images in a folder, and a table with their paths."""
    write_files(root, {f"images/{number}.jpg": picture(number) for number in range(count)})
    rows = [{"image": f"images/{n}.jpg", "breed": BREEDS[n % 2], "age": n} for n in range(count)]
    write_rows(root / f"dogs.{kind}", rows)
    return root


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table of the kind that its suffix names."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter={".csv": ",", ".tsv": "\t"}[path.suffix])
            writer.writeheader()
            writer.writerows(rows)
