"""Writer of an image folder in the layout that a peer reads, run in the peer's own environment.

python -m loaders.bench.peers_layouts mds --images FOLDER --out DIR --shards 8
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Sequence
from pathlib import Path

from loaders.bench.peers import LABEL_BYTES

LabelledFiles = Sequence[tuple[Path, int]]

NAME, SPLIT = "copy", "train"
"""Words in the names of shards, by which `dataprep adopt` finds the split."""


def labelled(folder: Path) -> list[tuple[Path, int]]:
    """Return the files of class folders in a mixed order, with the labels of torchvision's ImageFolder."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    found = [(path, label) for label, each in enumerate(classes) for path in each.iterdir()]
    return sorted(found, key=lambda each: (zlib.crc32(each[0].name.encode()), each))


def write_shards(layout: str, images: LabelledFiles, out: Path, shards: int) -> None:
    """Write tars or TFRecords as `dataprep build` does, but without heights and widths."""
    from dataprep.dataset.records import Sample
    from dataprep.formats import format_named

    shard_format = format_named(layout)
    if shard_format.one_file_per_image:
        raise SystemExit(f"{layout}: has no shards")
    for shard in range(shards):
        path = out / shard_format.shard_file(NAME, SPLIT, shard, shards)
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as stream:
            writer = shard_format.open_writer(stream, has_classes=True)
            for number, (file, label) in enumerate(images[shard::shards]):
                key = f"{shard:05d}-{number:07d}"
                writer.write(Sample(key, file.read_bytes(), label, file.parent.name, 0, 0, 1))
            writer.close()


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


def write_layout(layout: str, images: LabelledFiles, out: Path, shards: int) -> None:
    """Write images in a layout."""
    match layout:
        case "mds":
            write_mds(images, out, shards)
        case "array_record":
            write_array_record(images, out, shards)
        case _:
            write_shards(layout, images, out, shards)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("layout", choices=["webdataset", "tfrecord", "mds", "array_record"])
    parser.add_argument("--images", type=Path, required=True, help="folder of class folders")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=int, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    write_layout(options.layout, labelled(options.images), options.out, options.shards)


if __name__ == "__main__":
    main()
