"""Writer of the layouts that peers of the arena read, run in the peer's own environment.

python benchmarks/arena/layouts.py litdata --images FOLDER --out DIR --shards 8
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
from arena_peers import LABEL_BYTES

LabelledFiles = Sequence[tuple[Path, int]]


def labelled(folder: Path) -> list[tuple[Path, int]]:
    """Return the files of class folders in a mixed order, with the labels of torchvision's ImageFolder."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    found = [(path, label) for label, each in enumerate(classes) for path in each.iterdir()]
    return sorted(found, key=lambda each: (zlib.crc32(each[0].name.encode()), each))


def write_mds(images: LabelledFiles, out: Path, shards: int) -> None:
    """Write MDS with the columns of StreamingImageNet; JPEG files keep their bytes."""
    from PIL import Image
    from streaming import MDSWriter

    columns = {"i": "int", "x": "jpeg", "y": "int"}
    shard_bytes = sum(path.stat().st_size for path, _ in images) // shards
    with MDSWriter(out=str(out), columns=columns, size_limit=shard_bytes) as writer:
        for index, (path, label) in enumerate(images):
            with Image.open(path) as image:
                writer.write({"i": index, "x": image, "y": label})


def write_array_record(images: LabelledFiles, out: Path, shards: int) -> None:
    """Write array_record with one record a group, as Grain needs for random access."""
    from array_record.python.array_record_module import ArrayRecordWriter

    for shard in range(shards):
        writer = ArrayRecordWriter(str(out / f"{shard:05d}.array_record"), "group_size:1")
        for path, label in images[shard::shards]:
            writer.write(label.to_bytes(LABEL_BYTES, "little") + path.read_bytes())
        writer.close()


def _litdata_row(entry: tuple[str, int]) -> dict[str, object]:
    path, label = entry
    return {"image": Path(path).read_bytes(), "class": label}


def write_litdata(images: LabelledFiles, out: Path, shards: int) -> None:
    """Write chunks with litdata.optimize."""
    import litdata

    entries = [(str(path), label) for path, label in images]
    chunk_bytes = -(-sum(path.stat().st_size for path, _ in images) // shards)
    litdata.optimize(
        fn=_litdata_row,
        inputs=entries,
        output_dir=str(out),
        num_workers=1,
        chunk_bytes=chunk_bytes,
        start_method="fork",
        verbose=False,
    )


def write_parquet(images: LabelledFiles, out: Path, shards: int) -> None:
    """Write parquet with an image column of the Hub: bytes and path, in row groups of 100."""
    import pyarrow
    import pyarrow.parquet

    for shard in range(shards):
        rows = [
            {"image": {"bytes": path.read_bytes(), "path": path.name}, "label": label}
            for path, label in images[shard::shards]
        ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out / f"{shard:05d}.parquet", row_group_size=100)


def write_mds_bytes(images: LabelledFiles, out: Path, shards: int) -> None:
    """Write MDS with the JPEG's bytes in a column."""
    from streaming import MDSWriter

    shard_bytes = sum(path.stat().st_size for path, _ in images) // shards
    with MDSWriter(out=str(out), columns={"x": "bytes", "y": "int"}, size_limit=shard_bytes) as writer:
        for path, label in images:
            writer.write({"x": path.read_bytes(), "y": label})


def write_energon(images: LabelledFiles, out: Path, shards: int) -> None:
    """Link the tars of `dataprep build`, which hold the same images, and index them with `energon prepare`."""
    for shard in sorted((out.parent / "webdataset").rglob("*.tar")):
        os.link(shard, out / shard.name)
    command = [str(Path(sys.executable).with_name("energon")), "prepare", str(out), "--non-interactive"]
    command += ["--split-parts", "train:.*", "--num-workers", "2", "--sample-type", "ImageClassificationSample"]
    field_map = {"image": "jpg", "label": "cls"}
    subprocess.run([*command, "--field-map", json.dumps(field_map)], check=True)


def write_lance(images: LabelledFiles, out: Path, shards: int) -> None:
    """Write a table of LanceDB with the JPEG's bytes in a column."""
    import lancedb

    rows = ({"image": path.read_bytes(), "label": label} for path, label in images)
    lancedb.connect(str(out)).create_table("images", list(rows))


WRITERS: dict[str, Callable[[LabelledFiles, Path, int], None]] = {
    "mds": write_mds,
    "array_record": write_array_record,
    "litdata": write_litdata,
    "parquet": write_parquet,
    "mds-bytes": write_mds_bytes,
    "energon": write_energon,
    "lance": write_lance,
}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("layout", choices=list(WRITERS))
    parser.add_argument("--images", type=Path, required=True, help="folder of class folders")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=int, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    WRITERS[options.layout](labelled(options.images), options.out, options.shards)


if __name__ == "__main__":
    main()
