"""Datasets of strangers: damaged and hostile manifests, indexes and descriptions."""

from __future__ import annotations

import random
import shutil
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dataprep.builder.finished import shape_faults
from dataprep.cloud.replicate import dataset_phases
from dataprep.demo.make import write_demo
from dataprep.errors import DataprepError
from dataprep.inspection.inspect import inspect_dataset
from dataprep.storage import open_storage
from loaders import open_loader
from tests.attacks import Attack
from tests.support.adoption import adopt_here
from tests.support.finished import build_here, verify_here
from tests.support.json_mutants import mutants

SMALL = {"batch_size": 8, "image_size": 32, "threads": 1, "region_policy": "off"}


def _build(folder: Path, fmt: str, images: int = 60) -> Path:
    originals = folder / "originals"
    write_demo("imagenet", originals, images=images, odd=False)
    return Path(build_here("imagenet", originals, folder / "dataset", fmt))


def _load(url: Path, batches: int = 2) -> None:
    with open_loader(str(url), **SMALL) as loader:
        for _, _ in zip(range(batches), loader, strict=False):
            pass


def _adopt(url: Path) -> None:
    shutil.rmtree(url.parent / "adopted", ignore_errors=True)
    adopt_here(url, url.parent / "adopted")


READERS: dict[str, Callable[[Path], object]] = {
    "loader": _load,
    "inspect": lambda url: inspect_dataset(str(url)),
    "replicate": lambda url: dataset_phases(open_storage(str(url)), shape_faults),
    "verify": verify_here,
    "adopt": _adopt,
}


def _mutated(
    folder: Path,
    *,
    file: str,
    readers: tuple[str, ...],
    fmt: str,
    count: int,
    seed: int,
    prepare: Callable[[Path], object] = lambda _: None,
) -> str:
    """Each mutant of one file is read, or refused by a DataprepError."""
    dataset = _build(folder, fmt)
    prepare(dataset)
    original = (dataset / file).read_bytes()
    outcomes: Counter[str] = Counter()
    for done, mutant in mutants(original, random.Random(seed), count):
        (dataset / file).write_bytes(mutant)
        for reader in readers:
            try:
                READERS[reader](dataset)
                outcomes["read"] += 1
            except DataprepError as error:
                outcomes["refused, in several lines" if "\n" in str(error) else "refused"] += 1
            except Exception as error:
                at = traceback.extract_tb(error.__traceback__)[-1]
                raise AssertionError(f"{file}: {done}: {reader}: {error!r} at {at.filename}:{at.lineno}") from error
    assert not outcomes["refused, in several lines"]
    return ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(outcomes.items()))


def _labels(url: Path) -> NDArray[np.int64]:
    with open_loader(str(url), shuffle=False, augment=False, **SMALL) as loader:
        return np.concatenate([batch.labels[batch.mask] for batch in loader])


def _flipped_index(folder: Path, *, count: int, seed: int) -> str:
    """A bit of the index flipped, anywhere and in the labels: never other labels in silence."""
    dataset = _build(folder, "webdataset")
    index = dataset / "index" / "train.parquet"
    labels, original = _labels(dataset), index.read_bytes()
    metadata = pq.ParquetFile(index).metadata.row_group(0)
    columns = [metadata.column(number) for number in range(metadata.num_columns)]
    column = next(found for found in columns if found.path_in_schema == "label")
    start, size = column.dictionary_page_offset or column.data_page_offset, column.total_compressed_size
    rng, refused = random.Random(seed), 0
    for number in range(count):
        damaged = bytearray(original)
        at = start + rng.randrange(size) if number % 2 else rng.randrange(len(original))
        damaged[at] ^= 1 << rng.randrange(8)
        index.write_bytes(damaged)
        try:
            found = _labels(dataset)
        except DataprepError:
            refused += 1
        else:
            assert np.array_equal(found, labels), f"byte {at} of the index gives other labels"
    return f"{refused:,} of {count:,} flips refused"


def _leave_to_tfds(dataset: Path) -> None:
    """Make it a TFDS directory without a manifest of ours, in which the classes are not named."""
    (dataset / "dataset.json").unlink()
    shutil.rmtree(dataset / "index")
    (dataset / "label.labels.txt").unlink()


_of_tfds = partial(_mutated, readers=("adopt",), fmt="tfrecord", prepare=_leave_to_tfds)
ATTACKS = [
    Attack(
        "mutants of dataset.json, loaded",
        partial(_mutated, file="dataset.json", readers=("loader",), fmt="webdataset", count=24, seed=1),
        sampled=True,
    ),
    *(
        Attack(
            f"thousand mutants of dataset.json of {fmt}, seed {seed}",
            partial(
                _mutated,
                file="dataset.json",
                readers=("loader", "inspect", "replicate", "verify", "adopt"),
                fmt=fmt,
                count=1000,
                seed=seed,
            ),
        )
        for seed, fmt in enumerate(("webdataset", "tfrecord", "imagefolder"))
    ),
    Attack("flipped bits of the index", partial(_flipped_index, count=16, seed=2), sampled=True),
    Attack("thousand flipped bits of the index", partial(_flipped_index, count=1000, seed=3)),
    *(
        Attack(f"mutants of {file} of a TFDS directory", partial(_of_tfds, file=file, count=500, seed=4))
        for file in ("dataset_info.json", "features.json")
    ),
]
