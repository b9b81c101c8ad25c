"""Writes the layouts that only one peer reads, from an image folder: MosaicML's MDS or Grain's array_record.

.bench-venv/bin/python benchmarks/peers_loaders/layouts.py mds --images FOLDER --out DIR --shards 8
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

from loaders.peers import LABEL_BYTES


def labelled(folder: Path) -> list[tuple[Path, int]]:
    """The files of class folders with their labels, as torchvision's ImageFolder counts them."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [(path, label) for label, each in enumerate(classes) for path in sorted(each.iterdir())]


def write_mds(images: list[tuple[Path, int]], out: Path, shards: int) -> None:
    """Columns of StreamingImageNet; a JPEG that lies in a file keeps its bytes."""
    from streaming import MDSWriter

    columns = {"i": "int", "x": "jpeg", "y": "int"}
    shard_bytes = sum(path.stat().st_size for path, _ in images) // shards
    with MDSWriter(out=str(out), columns=columns, size_limit=shard_bytes) as writer:
        for index, (path, label) in enumerate(images):
            with Image.open(path) as image:
                writer.write({"i": index, "x": image, "y": label})


def write_array_record(images: list[tuple[Path, int]], out: Path, shards: int) -> None:
    """One record a group, as Grain wants it for random access."""
    from array_record.python.array_record_module import ArrayRecordWriter

    for shard in range(shards):
        writer = ArrayRecordWriter(str(out / f"{shard:05d}.array_record"), "group_size:1")
        for path, label in images[shard::shards]:
            writer.write(label.to_bytes(LABEL_BYTES, "little") + path.read_bytes())
        writer.close()


WRITERS = {"mds": write_mds, "array_record": write_array_record}


def main() -> None:
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
