"""What img2dataset 1.47 writes, without it: files with its names, columns, members and features, and its own words.

Rows lie in the order in which their answers came, which is not the table's; an absent number is an empty text in a
TFRecord and null in JSON. `run_img2dataset` runs the tool itself, where `make setup` installed it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import subprocess
import sysconfig
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.fetched.collect import EncodeOptions, RowFilter, encode_image
from dataprep.formats.example import bytes_list, float_list, frame_around, integer_list, map_entry, message
from tests.support.picture_web import PictureWeb

PYTHON = Path(__file__).parents[2] / ".bench-venv/img2dataset/bin/python"
SHARD_ROWS = 10
MADE = EncodeOptions(image_size=32, resize_mode="border", resize_only_if_bigger=False, skip_reencode=False)
"""How the images here are made: img2dataset's defaults at a smaller size."""
_ENDS = ["key", "status", "error_message", "width", "height", "original_width", "original_height", "exif"]


def write_img2dataset(
    web: PictureWeb,
    folder: Path,
    fmt: str,
    count: int,
    *,
    numbers: Sequence[int] | None = None,
    columns: Mapping[str, Any] | None = None,
    captions: bool = True,
    digest: str = "sha256",
    encode: EncodeOptions | None = MADE,
    messages: Mapping[int, str] | None = None,
) -> Path:
    """Ask for the first `count` pictures, and write what comes.

    Args:
        numbers: Numbers of the shards; 0, 1, … by default.
        columns: Further ones, a value for every row by its position.
        captions: Whether `caption_col` was given.
        digest: `compute_hash`.
        encode: None keeps the bytes: `disable_all_reencoding`.
        messages: Errors of rows that are not asked for, by their position.
    """
    folder.mkdir(parents=True)
    rows = web.rows(count)
    shards = [range(first, min(first + SHARD_ROWS, count)) for first in range(0, count, SHARD_ROWS)]
    for number, shard in zip(numbers or range(len(shards)), shards, strict=True):
        ends, images = [], []
        for place, row in enumerate(shard):
            table = {"similarity": rows[row]["similarity"], "LICENSE": None}
            table |= {name: values[row] for name, values in (columns or {}).items()}
            table |= {"caption": rows[row]["TEXT"]} if captions else {}
            key = f"{number:05d}{place}"
            end, image = _end_of(web, row, digest, encode, (messages or {}).get(row))
            ends.append(table | {"url": rows[row]["URL"], "key": key} | end)
            images.append(image)
        order = list(range(len(shard)))
        random.Random(number).shuffle(order)
        image_name = encode.encode_format if encode else "jpg"
        stem, ends, images = folder / f"{number:05d}", [ends[i] for i in order], [images[i] for i in order]
        _write_shard(stem, fmt, ends, images, digest, image_name)
    return folder


def run_img2dataset(web: PictureWeb, folder: Path, fmt: str, count: int) -> Path:
    """What the tool itself writes of the first pictures, with the settings of `write_img2dataset`."""
    table = web.write_table(folder.with_suffix(".parquet"), count)
    modules = folder.with_name("modules")
    modules.mkdir()
    (modules / "tensorflow_io.py").write_text("")  # it is imported for file systems that nobody uses here
    paths = [str(modules), sysconfig.get_path("purelib")]  # after its own: TensorFlow is taken from here
    code = f"import sys; sys.path += {paths!r}; from img2dataset.main import main; main()"
    options = {
        "url_list": table, "input_format": "parquet", "url_col": "URL", "caption_col": "TEXT", "output_folder": folder,
        "output_format": fmt, "number_sample_per_shard": SHARD_ROWS, "image_size": MADE.image_size, "thread_count": 8,
        "save_additional_columns": '["similarity","LICENSE"]',
    }  # fmt: skip
    words = [str(PYTHON), "-c", code, *(f"--{name}={value}" for name, value in options.items())]
    quiet = {"NO_ALBUMENTATIONS_UPDATE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(words, env={**os.environ, **quiet}, capture_output=True, check=True, timeout=800)
    return folder


def _end_of(
    web: PictureWeb, row: int, digest: str, encode: EncodeOptions | None, message: str | None
) -> tuple[dict[str, Any], bytes]:
    """The columns that say how a row ended, and its image."""
    absent = dict.fromkeys([*_ENDS[3:], digest])
    if message is None:
        code, body = web.answer(row)
        message = f"HTTP Error {code}: {HTTPStatus(code).phrase}" if code != 200 else None
    if message is not None:
        status = "failed_to_resize" if message.startswith("image") else "failed_to_download"
        return {"status": status, "error_message": message} | absent, b""
    end = {"status": "success", "error_message": None} | absent
    end |= {"exif": "{}", digest: hashlib.new(digest, body).hexdigest()}
    if encode is None:
        return end, body
    made = encode_image(body, encode, RowFilter())
    return end | {name: getattr(made, name) for name in _ENDS[3:7]}, made.data


def _write_shard(
    stem: Path, fmt: str, rows: Sequence[dict[str, Any]], images: Sequence[bytes], digest: str, image_name: str
) -> None:
    """The shard itself, the parquet file of all its rows, and their counts."""
    successes = [(row, image) for row, image in zip(rows, images, strict=True) if image]
    write = _write_tar if fmt == "webdataset" else _write_tfrecord
    write(stem, successes, image_name)
    table = pa.Table.from_pylist(list(rows))
    texts, sizes = (*_ENDS[:3], "exif", digest, "url"), _ENDS[3:7]
    types = dict.fromkeys(texts, pa.string()) | dict.fromkeys(sizes, pa.int32())
    fields = [pa.field(field.name, types.get(field.name, field.type)) for field in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), stem.with_suffix(".parquet"))
    statuses = Counter(row["status"] for row in rows)
    stats = {
        "count": len(rows), "successes": statuses["success"], "failed_to_download": statuses["failed_to_download"],
        "failed_to_resize": statuses["failed_to_resize"], "duration": 1.5, "start_time": 1e9, "end_time": 1e9 + 1.5,
        "status_dict": dict(Counter(row["error_message"] or "success" for row in rows)),
    }  # fmt: skip
    stem.with_name(f"{stem.name}_stats.json").write_text(json.dumps(stats, indent=4))


def _write_tar(stem: Path, samples: Sequence[tuple[dict[str, Any], bytes]], image_name: str) -> None:
    with tarfile.open(stem.with_suffix(".tar"), "w") as tar:
        for row, image in samples:
            members = {image_name: image, "json": json.dumps(row, indent=4).encode()}
            if "caption" in row:
                members["txt"] = (row["caption"] or "").encode()
            for suffix in sorted(members):
                info = tarfile.TarInfo(f"{row['key']}.{suffix}")
                info.size = len(members[suffix])
                tar.addfile(info, io.BytesIO(members[suffix]))


def _write_tfrecord(stem: Path, samples: Sequence[tuple[dict[str, Any], bytes]], image_name: str) -> None:
    with stem.with_suffix(".tfrecord").open("wb") as file:
        for row, image in samples:
            features = {image_name: image} | row | ({"txt": row["caption"] or ""} if "caption" in row else {})
            entries = (map_entry(name.encode(), _feature(value)) for name, value in features.items())
            example = message(b"\x0a", b"".join(entries))
            before, after = frame_around(b"", example, b"")
            file.write(before + example + after)


def _feature(value: Any) -> bytes:
    """A tf.train.Feature, by the type of a Python value, of a list by that of its first one."""
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], int):
        return integer_list(values)
    if isinstance(values[0], float):
        return float_list(values)
    return bytes_list(text if isinstance(text, bytes) else (text or "").encode() for text in values)
