"""Pack lists of lengths with Grain's best fit, in .bench-venv: prints the share of padding as JSON.

Command:   .bench-venv/bin/python benchmarks/peers/pack_with_grain.py < lengths.json
Reads:     {"tokens": T, "bins": B, "lengths": [...]}
"""

from __future__ import annotations

import json
import sys
import time

import grain
import numpy as np
from grain.experimental import BestFitPackIterDataset


def main() -> None:
    """Print the padding of all full rows, and the seconds that packing took."""
    given = json.load(sys.stdin)
    tokens, lengths = given["tokens"], given["lengths"]
    source = (
        grain.MapDataset.source(lengths).map(lambda length: {"tokens": np.ones(length, np.int32)}).to_iter_dataset()
    )
    started_s = time.perf_counter()
    packed = BestFitPackIterDataset(source, length_struct={"tokens": tokens}, num_packing_bins=given["bins"])
    used = rows = 0
    for row in packed:
        used, rows = used + int((row["tokens_segment_ids"] > 0).sum()), rows + 1
    seconds = time.perf_counter() - started_s
    print(json.dumps({"padding": 1 - used / (rows * tokens), "rows": rows, "seconds": seconds}))


if __name__ == "__main__":
    main()
