"""CPU time of a loader beside decoding: what each part takes of an image.

python benchmarks/beside.py --corpus DIR --json beside.json

A loader of WebDataset shards with one decoding thread takes turns with its decoder alone, which makes crops of the same
images from memory, and with a second loader, whose parts are timed.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.decoding import AHEAD, RestingLoader
from benchmarks.harness import common_options, in_turns, report, work_folder
from benchmarks.originals import build, corpus_images
from benchmarks.restart import BATCH, cropper
from loaders import open_loader
from loaders.engine.batch import BatchPlan

TARGET = 1.08
"""Largest CPU time of a loader that is wanted, divided by that of its decoder."""
COPIES = 4
"""Copies of each image in the dataset: the order costs an image more the fewer images there are."""
PARTS = {
    "requests": "_fetcher.request",
    "reading": "_fetcher._storage.read_range",
    "digests": "_check_digest",
    "crops": "_views",
    "decoding": "decoder.decode_views",
}
"""Functions of a pipeline that are timed."""


def resting(url: str) -> RestingLoader:
    """Open a loader that makes a batch at a time."""
    return RestingLoader(open_loader(url, batch_size=BATCH, threads=1, prefetch_batches=AHEAD), BATCH)


def with_timed_parts(url: str, spent_s: Counter[str]) -> RestingLoader:
    """Open a loader that adds the CPU time of its parts to `spent_s`, each measured in the thread that it runs in."""

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            started_s = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent_s[part] += time.thread_time() - started_s

        return call

    def timed_plan(plan: BatchPlan) -> Iterator[Any]:
        return iter(timed("order of the samples", iterate(plan).__next__), None)

    iterate, BatchPlan.__iter__ = BatchPlan.__iter__, timed_plan
    loader = resting(url)
    BatchPlan.__iter__ = iterate
    for part, path in PARTS.items():
        above, _, name = f"_loader._producer._pipeline.{path}".rpartition(".")
        owner = attrgetter(above)(loader)
        setattr(owner, name, timed(part, getattr(owner, name)))
    return loader


def main() -> None:
    """Measure and print."""
    parser = common_options(__doc__)
    parser.add_argument("--batches", type=int, default=12, help=f"batches of {BATCH} images in a round; default 12")
    options = parser.parse_args()
    with work_folder(options, "beside") as work:
        paths = corpus_images(options.corpus, work, options.images)
        for number, path in product(range(COPIES), paths):
            target = work / f"pictures/train/{path.parent.name}/{path.stem}{number}{path.suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        url = build(work / "pictures", work / "shards")
        parts: Counter[str] = Counter()
        contenders = {"loader": resting(url), "timed": with_timed_parts(url, parts)}
        contenders["decoder alone"] = cropper([path.read_bytes() for path in paths], 224, "bicubic", "extension")

        def once() -> dict[str, float]:
            parts.clear()
            spent: Counter[str] = Counter()
            for _, (name, contender) in product(range(options.batches), contenders.items()):
                spent[name] += contender()
            spent["everything else"] = spent.pop("timed") - parts.total()
            return {name: 1e6 * seconds / options.batches / BATCH for name, seconds in (spent | parts).items()}

        rounds = in_turns({"all": once}, options.rounds, warm_up=not options.no_warm_up)["all"]
    us = {name: [each[name] for each in rounds] for name in rounds[0]}
    report("beside", {"images": len(paths), "us": us, "target": TARGET}, options)


if __name__ == "__main__":
    main()
