"""What finding near duplicates takes, and what it finds: two tables.

    python benchmarks/near_duplicates.py --json near-duplicates.json

Hashes are random, and every hundredth is a copy of another with as many bits flipped as may differ; with more bits some
random ones are near each other, too. Time and memory are those of a process of its own. Pictures are those of the demo,
and each has copies that were resized, saved again or cut at all edges. Recall is the share of a kind of copies that is
found; precision the share of all that is found that is a copy. Crops of one photograph that overlap are no copies of
each other here.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import common_options, in_turns, report
from benchmarks.large_index import peak_bytes, reset_peak

SEED = 7
COPIES = 100
"""One of so many hashes is a copy."""
BITS = (0, 2, 4, 6, 8)
CUTS = (0.01, 0.03, 0.05)
"""Shares of each side that are cut at each edge."""


def measure(hashes: int, bits: int) -> dict[str, float]:
    """Find the planted copies in this process, and return what it took."""
    import numpy as np

    from dataprep.selection import near_duplicates

    draw = np.random.default_rng(SEED)
    found = draw.integers(0, 2**64, hashes, np.uint64)
    copies = np.arange(COPIES - 1, hashes, COPIES)
    flips = np.zeros(len(copies), np.uint64)
    for at in range(len(copies)):
        for bit in draw.choice(64, bits, replace=False):
            flips[at] ^= np.uint64(1 << int(bit))
    found[copies] = found[copies - 1] ^ flips
    begin_bytes, started_s = reset_peak(), time.process_time()
    near = near_duplicates(found, bits)
    took_s = time.process_time() - started_s
    if not (near[copies] | near[copies - 1]).all():
        raise SystemExit("a copy of a hash that is kept was not found")
    return {"s": took_s, "mb": (peak_bytes() - begin_bytes) / 1e6, "found": int(near.sum()), "planted": len(copies)}


def copies_of(image: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of a picture with their kinds."""
    from PIL import Image

    width, height = image.size
    for share in (0.5, 0.25):
        yield "resized", image.resize((int(width * share), int(height * share)), Image.Resampling.BICUBIC)
    for quality in (75, 40):
        coded = io.BytesIO()
        image.save(coded, "JPEG", quality=quality)
        yield "saved again", Image.open(coded).convert("RGB")
    for share in CUTS:
        left, top = int(width * share), int(height * share)
        yield f"cut by {share:.0%}", image.crop((left, top, width - left, height - top))


def found_pictures(count: int, most: int) -> list[dict[str, Any]]:
    """Return precision, and recall by kind of copy, for each number of bits that may differ."""
    import numpy as np
    from PIL import Image

    from dataprep.column_functions import phash
    from dataprep.demo.images import DemoImage, make_image
    from dataprep.selection import near_duplicates

    pictures, kinds = [], []
    for number in range(count):
        made = make_image(DemoImage("near-duplicates", seed=SEED, index=number, photograph=number))
        image = Image.open(io.BytesIO(made.file)).convert("RGB")
        for kind, each in [("", image), *copies_of(image)]:
            kinds.append(kind)
            pictures.append(np.asarray(each))
    hashes, names = phash(SimpleNamespace(images=pictures)), np.array(kinds)
    first = np.argsort(names != "", kind="stable")  # originals before copies
    hashes, names = hashes[first], names[first]
    rows = []
    for bits in range(0, most + 1, 2):
        near = near_duplicates(hashes, bits)
        recall = {kind: float(near[names == kind].mean()) for kind in dict.fromkeys(names.tolist()) if kind}
        rows.append({"bits": bits, "precision": float((names[near] != "").mean()), "recall": recall})
    return rows


def main() -> None:
    """Measure hashes in turn, then look for pictures."""
    parser = common_options(__doc__)
    parser.add_argument("--hashes", type=int, default=1_000_000)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.hashes, options.measure)))
        return

    def measured(bits: int) -> dict[str, float]:
        command = [sys.executable, __file__, "--hashes", str(options.hashes), "--measure", str(bits)]
        figures: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return figures

    rounds = in_turns({bits: partial(measured, bits) for bits in BITS}, options.rounds, warm_up=False)
    rows = [
        {"bits": bits} | {name: statistics.median(each[name] for each in found) for name in found[0]}
        for bits, found in rounds.items()
    ]
    pictures = options.images or 300
    document = {"hashes": options.hashes, "rows": rows, "pictures": pictures, "found": found_pictures(pictures, 16)}
    report("near-duplicates", document, options)


if __name__ == "__main__":
    main()
