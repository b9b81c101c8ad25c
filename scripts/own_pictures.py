"""Build shards of a folder of pictures with an installed wheel, load them, and print how long each step takes.

`scripts/bare_root.sh` runs this where there is no compiler and no network; the pictures are in `pictures` beside it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

PICTURES = Path(__file__).with_name("pictures")
BATCH_SIZE, IMAGE_SIZE = 40, 224


def main() -> None:
    """Print one line; the exit status is 0 only if every picture was loaded."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        build(shards)
        built_s = time.monotonic() - begun_s
        loaded, first_s = load(shards)
    expected = sum(path.is_file() for path in PICTURES.rglob("*"))
    if expected - BATCH_SIZE >= loaded or loaded == 0:
        raise SystemExit(f"{loaded} of {expected} pictures were loaded")
    print(
        f"own pictures: {expected} in {built_s:.1f} s to shards, first batch {first_s:.1f} s later, "
        f"an epoch of {loaded} images after {time.monotonic() - begun_s:.1f} s in all"
    )


def build(shards: Path) -> None:
    """Run the one command that a user needs for pictures of their own."""
    program = Path(sys.executable).with_name("dataprep")
    options = ("--source", PICTURES, "--output", shards, "--format", "webdataset")
    words = [str(word) for word in (sys.executable, program, "build", "folder", *options)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"exit status {done.returncode} of {' '.join(words)}\n{done.stdout}")


def load(shards: Path) -> tuple[int, float]:
    """Load one epoch; return the number of images, and the seconds until the first batch."""
    begun_s, first_s, loaded = time.monotonic(), 0.0, 0
    from loaders import open_loader

    with open_loader(str(shards), batch_size=BATCH_SIZE, image_size=IMAGE_SIZE) as loader:
        for batch in loader:
            first_s = first_s or time.monotonic() - begun_s
            loaded += len(batch.images)
    return loaded, first_s


if __name__ == "__main__":
    main()
