"""Packs beside square crops, Grain's best-fit packing and timm's NaFlex loader, on the same photographs.

Command:   python benchmarks/packs.py --corpus FOLDER            padding, compilations, images/s and tokens/s
           python benchmarks/packs.py --corpus FOLDER --train    a small masked autoencoder on packs and on squares
Takes:     two minutes; with --train five. Needs the `xla` and `finetune` extras, and .bench-venv for Grain.
Prints:    one table each

All contenders make patches of 16 pixels, rows of 1,024 tokens and 128 tokens an image in the mean, on as many workers.
Loaders take turns; the median of the rounds is printed. NaFlex has one sequence length a batch, so its padding is that
of its own lengths, and each length is a shape.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from originals import machine_facts

sys.path.insert(0, str(Path(__file__).parents[1]))

from loaders import Packs, open_loader, open_packs
from loaders.packs import plan_rows

ROOT = Path(__file__).parents[1]
PACKS = Packs(patch=16, tokens=1024, images=8)
SQUARE = 176
"""Side of the square crops that have about as many patches as an image of a pack: 121."""
GRAIN_BINS = 64
NAFLEX_LENGTHS = (64, 128, 256)
IMAGENET_IMAGES = 1_281_167
HELD_OUT = 0.1
"""Share of the corpus on which nothing is trained."""


@dataclass(frozen=True)
class Measured:
    """What a loader made in some seconds."""

    images_per_s: float
    tokens_per_s: float
    padding: float
    shapes: int


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of class folders with JPEGs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each round, in seconds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", action="store_true", help="train on packs and on squares instead")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path, help="file to which the figures are written as JSON")
    options = parser.parse_args()
    found: dict[str, Any] = machine_facts()
    with tempfile.TemporaryDirectory(prefix="packs-") as folder:
        dataset = _built(options.corpus, Path(folder), held_out=HELD_OUT if options.train else 0.0)
        if options.train:
            found |= {"steps": options.steps, "held_out": _held_out(dataset, options.steps)}
        else:
            found |= {"plans": _plans(dataset), "loaders": _loaders(dataset, options)}
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _built(corpus: Path, folder: Path, *, held_out: float) -> str:
    """Build shards of the corpus, a share of it as validation split; the index then has the images' sizes."""
    output = folder / "shards"
    command = [sys.executable, "-m", "dataprep", "build", "folder", "--source", str(corpus), "--output", str(output)]
    command += ["--format", "webdataset", "--num-shards", "8", "--val-fraction", str(held_out)]
    subprocess.run(command, check=True, capture_output=True)
    return str(output)


def _plans(dataset: str) -> dict[str, Any]:
    """Print and return padding: of the dataset's packs, of ImageNet's number of such images, and of Grain's packing."""
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
    found = {
        "photographs": len(sizes),
        "padding_two_epochs": 1 - used / total,
        "many_images": len(lengths),
        "many_planned_s": planned_s,
        "many_padding": 1 - int(lengths.sum()) / len(many) / PACKS.tokens,
    }
    print(f"{len(sizes):,} photographs; rows of {PACKS.tokens:,} tokens, {PACKS.images} images in a row")
    print(f"padding of two epochs: {100 * found['padding_two_epochs']:.2f} %")
    print(
        f"{len(lengths):,} images of these sizes: planned in {planned_s:.1f} s of one core, in batches of 128 rows; "
        f"padding {100 * found['many_padding']:.2f} %"
    )
    return found | {"grain": _grain(lengths[:100_000].tolist())}


def _grain(lengths: list[int]) -> dict[str, Any] | None:
    """Print and return Grain's padding for images of the same lengths; None without .bench-venv."""
    python = ROOT / ".bench-venv/bin/python"
    if not python.exists():
        print("grain: .bench-venv is missing; run make setup")
        return None
    given = json.dumps({"tokens": PACKS.tokens, "bins": GRAIN_BINS, "lengths": lengths})
    program = [str(python), str(ROOT / "benchmarks/peers/pack_with_grain.py")]
    done = subprocess.run(program, input=given, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(
        f"grain's best fit in {GRAIN_BINS} bins, {len(lengths):,} of these lengths: padding "
        f"{100 * found['padding']:.2f} %, {found['seconds']:.1f} s"
    )
    return {"bins": GRAIN_BINS, "images": len(lengths), **found}


def _loaders(dataset: str, options: argparse.Namespace) -> dict[str, Any]:
    """Print and return the rates of the loaders, and how many graphs XLA compiles for their batches."""
    contenders: dict[str, Callable[[], Iterator[tuple[int, np.ndarray]]]] = {
        "packs": lambda: _packs(dataset, options.workers),
        f"square crops of {SQUARE}": lambda: _squares(dataset, options.workers),
        "timm's NaFlex loader": lambda: _naflex(options.corpus, options.workers),
    }
    running = {name: make() for name, make in contenders.items()}
    rounds: dict[str, list[Measured]] = {name: [] for name in contenders}
    for batches in running.values():
        next(batches)  # opens the loader
    for _ in range(options.rounds):
        for name, batches in running.items():
            rounds[name].append(_measured(batches, options.seconds))
    compiled = {name: _compilations(batches) for name, batches in running.items()}
    print(f"{'':28}{'images/s':>10}{'tokens/s':>11}{'padding':>9}{'shapes':>8}{'compiled':>10}")
    for name, found in rounds.items():
        images = statistics.median(each.images_per_s for each in found)
        tokens = statistics.median(each.tokens_per_s for each in found)
        padding = 100 * statistics.mean(each.padding for each in found)
        shapes = max(each.shapes for each in found)
        print(f"{name:28}{images:10.0f}{tokens:11.0f}{padding:8.2f}%{shapes:8}{compiled[name]:10}")
    return {
        name: {"compiled": compiled[name], "rounds": [asdict(each) for each in found]} for name, found in rounds.items()
    }


def _measured(batches: Iterator[tuple[int, np.ndarray]], seconds: float) -> Measured:
    """Take batches for some seconds: numbers of images, and masks of their tokens."""
    images = tokens = places = 0
    shapes = set()
    started_s = time.perf_counter()
    while time.perf_counter() - started_s < seconds:
        count, mask = next(batches)
        images, tokens, places = images + count, tokens + int(mask.sum()), places + mask.size
        shapes.add(mask.shape)
    elapsed_s = time.perf_counter() - started_s
    return Measured(images / elapsed_s, tokens / elapsed_s, 1 - tokens / places, len(shapes))


def _compilations(batches: Iterator[tuple[int, np.ndarray]], steps: int = 30) -> int:
    """Return how many graphs XLA compiles for a small step over so many batches."""
    import torch
    import torch_xla
    import torch_xla.debug.metrics as met

    def compiled() -> int:
        found = met.metric_data("CompileTime")
        return 0 if found is None else int(found[0])

    before = compiled()
    for _ in range(steps):
        _, mask = next(batches)
        total = torch.from_numpy(mask).to(torch_xla.device()).float().softmax(dim=-1).sum()
        torch_xla.sync()
        if not float(total) > 0:
            raise RuntimeError(f"the masks of a step add up to {float(total)}")
    return compiled() - before


def _packs(dataset: str, workers: int) -> Iterator[tuple[int, np.ndarray]]:
    with open_packs(dataset, batch_size=64, packs=PACKS, threads=workers) as loader:
        for batch in chain.from_iterable(repeat(loader)):
            yield int(batch.mask.sum()), batch.token_mask


def _squares(dataset: str, workers: int) -> Iterator[tuple[int, np.ndarray]]:
    patches = (SQUARE // PACKS.patch) ** 2
    with open_loader(dataset, batch_size=64, image_size=SQUARE, threads=workers) as loader:
        for batch in chain.from_iterable(repeat(loader)):
            yield len(batch.labels), np.ones((len(batch.labels), patches), np.bool_)


def _naflex(corpus: Path, workers: int) -> Iterator[tuple[int, np.ndarray]]:
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


def _held_out(dataset: str, steps: int) -> dict[str, dict[str, float]]:
    """Train the same small network on packs and on square crops of as many tokens; print errors of held-out images."""
    import torch
    from packs_training import held_out_errors, trained

    torch.set_num_threads(2)
    print(f"{'trained on':18}{'held out, own shape':>22}{'held out, squares':>20}   after {steps} steps")
    errors = {}
    for kind in ("packs", "squares"):
        found = errors[kind] = held_out_errors(dataset, trained(dataset, kind, steps))
        print(f"{kind:18}{found['packs']:22.4f}{found['squares']:20.4f}")
    return errors


if __name__ == "__main__":
    main()
