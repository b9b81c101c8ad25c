"""Packs beside square crops, Grain's best-fit packing and timm's NaFlex loader, on the same photographs.

    python benchmarks/packs.py --corpus FOLDER      needs the `xla` and `finetune` extras, and .bench-venv for Grain

All contenders make patches of 16 pixels, rows of 1,024 tokens and 128 tokens an image in the mean, on as many workers.
Loaders take turns. NaFlex has one sequence length a batch, so its padding is that of its own lengths, and each length
is a shape.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import PEERS, PEERS_PYTHON, common_options, in_turns, report, work_folder
from benchmarks.originals import build, corpus_images, image_folder
from loaders import Packs, open_loader, open_packs
from loaders.packs import plan_rows

PACKS = Packs(patch=16, tokens=1024, images=8)
SQUARE = 176
"""Side of the square crops that have about as many patches as an image of a pack: 121."""
GRAIN_BINS = 64
NAFLEX_LENGTHS = (64, 128, 256)
IMAGENET_IMAGES = 1_281_167
COMPILED_STEPS = 30
Batches = Iterator[tuple[int, np.ndarray]]
"""Numbers of images, and masks of their tokens."""


def plans(dataset: str) -> dict[str, Any]:
    """Return padding: of the dataset's packs, of ImageNet's number of such images, and of Grain's packing."""
    with open_packs(dataset, batch_size=64, packs=PACKS) as loader:
        shards = [loader.index.shard(shard) for shard in range(len(loader.dataset.split.shards))]
        sizes = np.concatenate([np.stack([each.height, each.width], axis=1) for each in shards]).astype(np.int64)
        epochs = [batch.token_mask for batch in chain.from_iterable(repeat(loader, 2))]
    used, total = sum(int(mask.sum()) for mask in epochs), sum(mask.size for mask in epochs)
    rng = np.random.default_rng(0)
    many = sizes[rng.integers(0, len(sizes), IMAGENET_IMAGES // PACKS.images * PACKS.images)]
    many = many.reshape(-1, PACKS.images, 2)
    draws = rng.random(many.shape[:2])
    started_s = time.process_time()
    grids = [
        plan_rows(PACKS, many[first : first + 128, :, 0], many[first : first + 128, :, 1], draws[first : first + 128])
        for first in range(0, len(many), 128)
    ]
    planned_s = time.process_time() - started_s
    lengths = np.concatenate(grids).astype(np.int64).prod(axis=-1).ravel()
    return {
        "photographs": len(sizes),
        "padding_two_epochs": 1 - used / total,
        "many_images": len(lengths),
        "many_planned_s": planned_s,
        "many_padding": 1 - int(lengths.sum()) / len(many) / PACKS.tokens,
        "grain": grain(lengths[:100_000].tolist()),
    }


def grain(lengths: list[int]) -> dict[str, Any] | None:
    """Return Grain's padding for images of the same lengths; None without .bench-venv."""
    if not PEERS_PYTHON.exists():
        return None
    given = json.dumps({"tokens": PACKS.tokens, "bins": GRAIN_BINS, "lengths": lengths})
    program = [str(PEERS_PYTHON), str(PEERS / "pack_with_grain.py")]
    done = subprocess.run(program, input=given, capture_output=True, text=True, check=True)
    return {"bins": GRAIN_BINS, "images": len(lengths), **json.loads(done.stdout.splitlines()[-1])}


def taken(batches: Batches, seconds: float) -> dict[str, float]:
    """Take batches for some seconds."""
    images = tokens = places = 0
    shapes, started_s = set(), time.perf_counter()
    while time.perf_counter() - started_s < seconds:
        count, mask = next(batches)
        images, tokens, places = images + count, tokens + int(mask.sum()), places + mask.size
        shapes.add(mask.shape)
    elapsed_s = time.perf_counter() - started_s
    rates = {"images_per_s": images / elapsed_s, "tokens_per_s": tokens / elapsed_s}
    return rates | {"padding": 1 - tokens / places, "shapes": len(shapes)}


def compilations(batches: Batches) -> int:
    """Return how many graphs XLA compiles for a small step over some batches."""
    import torch
    import torch_xla
    import torch_xla.debug.metrics as met

    def compiled() -> int:
        found = met.metric_data("CompileTime")
        return 0 if found is None else int(found[0])

    before = compiled()
    for _ in range(COMPILED_STEPS):
        _, mask = next(batches)
        total = torch.from_numpy(mask).to(torch_xla.device()).float().softmax(dim=-1).sum()
        torch_xla.sync()
        if not float(total) > 0:
            raise RuntimeError(f"the masks of a step add up to {float(total)}")
    return compiled() - before


def packs(dataset: str, workers: int) -> Batches:
    with open_packs(dataset, batch_size=64, packs=PACKS, threads=workers) as loader:
        for batch in chain.from_iterable(repeat(loader)):
            yield int(batch.mask.sum()), batch.token_mask


def squares(dataset: str, workers: int) -> Batches:
    patches = (SQUARE // PACKS.patch) ** 2
    with open_loader(dataset, batch_size=64, image_size=SQUARE, threads=workers) as loader:
        for batch in chain.from_iterable(repeat(loader)):
            yield len(batch.labels), np.ones((len(batch.labels), patches), np.bool_)


def naflex(corpus: Path, workers: int) -> Batches:
    import torch
    from timm.data.naflex_loader import create_naflex_loader
    from torchvision.datasets import ImageFolder

    loader = create_naflex_loader(
        ImageFolder(str(corpus)),
        patch_size=PACKS.patch,
        train_seq_lens=NAFLEX_LENGTHS,
        max_seq_len=max(NAFLEX_LENGTHS),
        batch_size=64,
        is_training=True,
        color_jitter=0.0,
        interpolation="bicubic",
        num_workers=workers,
        use_prefetcher=False,
        pin_memory=False,
        device=torch.device("cpu"),
    )
    for batch, targets in chain.from_iterable(repeat(loader)):
        yield len(targets), batch["patch_valid"].numpy()


def main() -> None:
    """Measure and print."""
    parser = common_options(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each round, in seconds")
    options = parser.parse_args()
    with work_folder(options, "packs") as work:
        source = image_folder(corpus_images(options.corpus, work, options.images), work / "originals")
        dataset = build(source, work / "shards", shards=8)
        running = {
            "packs": packs(dataset, options.workers),
            f"square crops of {SQUARE}": squares(dataset, options.workers),
            "timm's NaFlex loader": naflex(source / "train", options.workers),
        }
        for batches in running.values():
            next(batches)  # opens the loader
        runs = {name: partial(taken, batches, options.seconds) for name, batches in running.items()}
        rounds = in_turns(runs, options.rounds, warm_up=not options.no_warm_up)
        loaders = {
            name: {"compiled": compilations(batches), "rounds": rounds[name]} for name, batches in running.items()
        }
        document = {"plans": plans(dataset), "loaders": loaders}
    report("packs", document, options)


if __name__ == "__main__":
    main()
