"""ImageNet's 1,281,167 + 50,000 images as pictures of 2 kB: made, built, verified, adopted, converted and loaded.

    python benchmarks/scale.py --json scale.json                  # ten minutes, 15 GB
    python benchmarks/scale.py --share 0.1 --only make build      # a tenth of the images of every class

What a command takes with pictures as small as these is what it takes for each image besides reading and decoding it.
Every step is a process with its children. The last two train: an epoch of a loader from its start, and the first batch
of one that resumes in the middle of an epoch.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import DATAPREP, common_options, levelled_environment, report, work_folder
from dataprep.host.measure import measure

TRAIN, VAL, CLASSES = 1_281_167, 50_000, 1_000
PICTURES = 256
SIDE = 96
BATCH = 1_024
TARGETS_S = {"build": 60, "verify": 20}
STEPS = ("make", "build", "verify", "adopt", "convert", "epoch", "resume")

LOADER = f"""
import json, sys, time
started_s = time.perf_counter()
from loaders import open_loader
url, what, state = sys.argv[1:]
with open_loader(url, batch_size={BATCH}, image_size=64) as loader:
    if what == "resume":
        loader.load_state_dict(json.load(open(state)))
    for number, batch in enumerate(loader):
        if not number:
            first_s = time.perf_counter()
        if what == "resume":
            break
        if number == len(loader) // 2:
            json.dump(loader.state_dict(), open(state, "w"))
print(json.dumps({{"first_batch_s": first_s - started_s}}))
"""
"""Program that takes an epoch, or the first batch of what is left of it."""


def make(folder: Path, share: float) -> None:
    """Write the originals as they are published: a tar of class tars, and a tar with Kaggle's labels."""
    from dataprep.sources.imagenet import TRAIN_TAR, VAL_TAR, published_classes
    from dataprep.sources.imagenet_labels import KAGGLE_CSV

    folder.mkdir()
    made, wnids = pictures(), published_classes()
    counts = [round(share * (TRAIN * (rank + 1) // CLASSES - TRAIN * rank // CLASSES)) for rank in range(CLASSES)]
    number = 0
    with tarfile.open(folder / TRAIN_TAR, "w", format=tarfile.USTAR_FORMAT) as outer:
        for wnid, count in zip(wnids, counts, strict=True):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                for at in range(count):
                    add(tar, f"{wnid}_{at + 1}.JPEG", numbered(made[number % PICTURES], number))
                    number += 1
            add(outer, f"{wnid}.tar", inner.getvalue())
    labels = ["ImageId,PredictionString"]
    with tarfile.open(folder / VAL_TAR, "w", format=tarfile.USTAR_FORMAT) as tar:
        for at in range(round(share * VAL)):
            name = f"ILSVRC2012_val_{at + 1:08d}"
            add(tar, f"{name}.JPEG", numbered(made[at % PICTURES], number + at))
            labels.append(f"{name},{wnids[at % CLASSES]} 0 0 9 9")
    (folder / KAGGLE_CSV).write_text("\n".join(labels) + "\n")


def pictures() -> list[bytes]:
    """Return JPEGs of about 2 kB."""
    import numpy as np
    from PIL import Image

    found, random = [], np.random.default_rng(0)
    for _ in range(PICTURES):
        stream = io.BytesIO()
        colours = random.integers(0, 256, (5, 5, 3), dtype=np.uint8)
        Image.fromarray(colours).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=85)
        found.append(stream.getvalue())
    return found


def numbered(picture: bytes, number: int) -> bytes:
    """Return a JPEG with a number as its comment, so that no two images have the same bytes."""
    return b"%b\xff\xfe\x00\x0a%08d%b" % (picture[:2], number, picture[2:])


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a member to a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    file: IO[bytes] = io.BytesIO(data)
    tar.addfile(member, file)


def commands(work: Path, share: float) -> Iterator[tuple[str, list[str | Path]]]:
    """Yield the steps with their commands."""
    originals, built, others, converted = (work / name for name in ("originals", "built", "others", "converted"))
    state = work / "state.json"
    partial = ["--allow-partial"] if share < 1 else []
    build = ["--source", originals, "--output", built, "--format", "webdataset", "--json", *partial]
    yield "make", [sys.executable, __file__, "--make", originals, "--share", str(share)]
    yield "build", [DATAPREP, "build", "imagenet", *build]
    yield "verify", [DATAPREP, "verify", built, "--json"]
    if built.exists():
        for shard in built.glob("*/*.tar"):  # the same tars without our manifest and index
            (others / shard.parent.name).mkdir(parents=True, exist_ok=True)
            os.link(shard, others / shard.parent.name / shard.name)
    yield "adopt", [DATAPREP, "adopt", others, "--json"]
    yield "convert", [DATAPREP, "convert", built, "--output", converted, "--format", "tfrecord", "--json"]
    for what in ("epoch", "resume"):
        yield what, [sys.executable, "-c", LOADER, built, what, state]


def main() -> None:
    """Run the steps, and print what each took."""
    parser = common_options(__doc__, rounds=1)
    parser.add_argument("--share", type=float, default=1.0, help="of the images of every class")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS, help="steps to run")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make(options.make, options.share)
        return
    rows = []
    with work_folder(options, "scale") as work:
        for step, command in commands(work, options.share):
            if step not in options.only:
                continue
            os.sync()
            found = measure(command, levelled_environment())
            rows.append(
                {
                    "step": step,
                    "wall_s": round(found.wall_s, 2),
                    "cpu_s": round(found.cpu_s, 2),
                    "largest_mb": round(found.largest_bytes / 1e6),
                    "sum_mb": round(found.sum_bytes / 1e6),
                    "target_s": TARGETS_S.get(step) if options.share == 1 else None,
                }
            )
            if step in ("epoch", "resume"):
                rows[-1] |= json.loads(found.stdout)
            print(rows[-1], file=sys.stderr, flush=True)
    report("scale", {"share": options.share, "train": TRAIN, "val": VAL, "rows": rows}, options)


if __name__ == "__main__":
    main()
