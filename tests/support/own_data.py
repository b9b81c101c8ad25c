"""Small trees of pictures as users have them, with and without metadata, and builds of them in this process."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from dataprep.builder.driver import prepare
from dataprep.builder.plan import BuildOptions, BuildRequest, Plan
from dataprep.dataset.records import Manifest
from dataprep.sources.base import OwnData
from tests.support.build_here import Quiet, whole

CAPTIONS = ("a cat on a mat", "Grünfink \u2028 🐦", 'a "quoted" back\\slash', "", "line\nend")
SPLITS = {"train": 7, "val": 3}


class Notes(Quiet):
    """Keeps what a build has to say of the data."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


def picture(number: int, kind: str = "JPEG", size: tuple[int, int] = (24, 16)) -> bytes:
    """A small picture of its own colour."""
    stream = io.BytesIO()
    Image.new("RGB", size, (number * 37 % 256, number * 91 % 256, number * 53 % 256)).save(stream, kind)
    return stream.getvalue()


def write_files(root: Path, files: Mapping[str, bytes | str]) -> Path:
    """Write files below a folder."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def class_folders(root: Path) -> Path:
    """Write `train` and `val` with the classes cats and dogs; one picture is a PNG, and files lie around."""
    files: dict[str, bytes | str] = {"README.txt": "hello", "train/.DS_Store": b"x", "train/cats/notes.docx": b"x"}
    for split, count in SPLITS.items():
        for number in range(count):
            kind = "PNG" if number == 1 else "JPEG"
            for base, name in ((0, "cats"), (50, "dogs")):
                file = f"{split}/{name}/{name[:3]} {number}.{kind.lower()}"
                files[file] = picture(base + number, kind)
    return write_files(root, files)


def annotated_rows(count: int = 9) -> list[dict[str, Any]]:
    """Rows of metadata with a value of every kind."""
    return [
        {
            "file_name": f"{'deep/er/' if number % 2 else ''}{number:03d}.jpg",
            "caption": CAPTIONS[number % len(CAPTIONS)],
            "score": number / 3 if number else -0.0,
            "year": 2000 + number,
            "indoor": number % 3 == 0,
            "tags": [f"t{tag}" for tag in range(number % 3)],
            "objects": [
                {"bbox": [1.5 * item, 2.25, 3.1, 4.0], "category": item, "name": f"thing {item}"}
                for item in range(number % 4)
            ],
            "patient": f"p{number // 2}",
        }
        for number in range(count)
    ]


def annotated(root: Path, count: int = 9) -> Path:
    """Write pictures in some folders, with metadata.jsonl."""
    rows = annotated_rows(count)
    files: dict[str, bytes | str] = {row["file_name"]: picture(number) for number, row in enumerate(rows)}
    files["metadata.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    return write_files(root, files)


def write_pets(root: Path, count: int = 80) -> None:
    """Write splits, class folders, a picture of another kind, and metadata of each split."""
    files: dict[str, bytes | str] = {"README.md": "pets"}
    rows = annotated_rows(count)
    train = count * 3 // 4
    for split, chosen in (("train", rows[:train]), ("val", rows[train:])):
        named = [row | {"file_name": f"{('cats', 'dogs', 'fish')[n % 3]}/{n}.jpg"} for n, row in enumerate(chosen)]
        for number, row in enumerate(named):
            kind = "PNG" if number % 20 == 7 else "JPEG"
            files[f"{split}/{row['file_name']}"] = picture(number + len(chosen), kind, (32 + number, 24))
        files[f"{split}/metadata.jsonl"] = "".join(json.dumps(row) + "\n" for row in named)
    write_files(root, files)


def stored_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a dataset has of one of `annotated_rows`: records become columns."""
    values = {name: value for name, value in row.items() if name != "file_name"}
    objects = values["objects"]
    values["objects"] = {name: [item[name] for item in objects] for name in ("bbox", "category", "name")}
    return values


def request(source: object, output: object, fmt: str = "webdataset", **own: Any) -> BuildRequest:
    """A request for all that is there, in two shards a split; options of OwnData, and of BuildOptions by `options`."""
    options = {"num_shards": 2} | own.pop("options", {})
    return BuildRequest(
        options=BuildOptions(
            dataset=own.pop("dataset", "folder"),
            format=fmt,
            splits=own.pop("splits", ()),
            own=OwnData(name="pets", **own),
            **options,
        ),
        source_url=str(source),
        output_url=str(output),
        max_reject_ratio=0.0,
    )


def build_own(source: object, output: object, fmt: str = "webdataset", **own: Any) -> Manifest:
    """Build it."""
    return whole(request(source, output, fmt, **own))


def planned(source: object, notes: Notes | None = None, **own: Any) -> Plan:
    """Plan it, and write nothing."""
    return prepare(request(source, "/nowhere/out", **own), notes or Quiet(), keep=False).plan
