"""The data of a benchmark: a dataset of any origin, as our loader and as other loaders read it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path, PurePosixPath

from dataprep.adoption import AdoptRequest, Progress, adopt
from dataprep.dataset.adopted import is_adopted, open_linked
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from loaders.dataset import Dataset, open_dataset, refuse_mixture
from loaders.fetch.index import DEADLINE_S, SplitIndex, with_deadline

INDEX_DEADLINE_S = 60.0
SAMPLED_SHARDS = 64
"""Maximum number of shards from which the mean size of an image is estimated."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchData:
    """Dataset of a benchmark: how our loader and how other loaders open it."""

    url: str
    """URL as it was given; several tars are joined by blanks."""
    dataset: Dataset
    layout: str
    is_local: bool
    root: str
    """Folder of the split's files as other loaders read them."""
    files: tuple[str, ...]
    """Shards of the split; empty for an image folder."""
    why_unreadable: str
    """Reason why other loaders cannot read the files as they are; empty if they can."""
    bytes_per_image: float
    """Mean size of an encoded image."""


def grouped(urls: Sequence[str]) -> list[tuple[str, ...]]:
    """Group URLs into datasets: all tars together are one, every other URL is one by itself. Braces are expanded."""
    expanded = [each for url in urls for each in expand_braces(url)]
    groups: dict[str, list[str]] = {}
    for url in dict.fromkeys(expanded):
        groups.setdefault("" if url.endswith(".tar") else url, []).append(url)
    return [tuple(group) for group in groups.values()]


def expand_braces(text: str) -> Iterator[str]:
    """Expand `{000..146}` and `{a,b}` as shells and webdataset do."""
    braces = _BRACES.search(text)
    if braces is None:
        yield text
        return
    numbers = _RANGE.fullmatch(braces[1])
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        parts = [f"{number:0{len(numbers[1])}d}" for number in range(first, last + 1)]
    else:
        parts = braces[1].split(",")
    for part in parts:
        yield from expand_braces(text[: braces.start()] + part + text[braces.end() :])


def open_bench_data(urls: tuple[str, ...], split: str, index: Path, progress: Progress, workers: int) -> BenchData:
    """Open a dataset; data without a manifest are indexed in a folder of this machine.

    Args:
        urls: URLs of one dataset, as `grouped` returns them.
        split: Name of a split.
        index: Folder for the index of data without a manifest.
        progress: Receives what is being done.
        workers: Processes that index.

    Raises:
        UsageError: There is no such data, or no such split.
        SourceError: The data are damaged.
    """
    if urls[0].endswith(".tar"):
        root, names = _common_folder(urls)
        there = {info.name for info in open_linked(root).list()}
        missing = [name for name in names if name not in there]
        if missing:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise UsageError(f"{root}/{missing[0]}{more}: not found; check the name")
        splits = tuple((split, escape(name)) for name in names)
        dataset_url = _adopted(AdoptRequest(url=root, index_url=str(index), splits=splits), progress, workers)
    elif read_manifest(with_deadline(open_storage(urls[0]), DEADLINE_S)) is None:
        refuse_mixture(urls[0])
        dataset_url = _adopted(AdoptRequest(url=urls[0], index_url=str(index)), progress, workers)
    else:
        dataset_url = urls[0]
    dataset = open_dataset(dataset_url, split)
    opened = dataset.open_index(INDEX_DEADLINE_S)
    storage = dataset.storage
    layout = dataset.manifest.format
    files = () if opened.one_file_per_image else tuple(storage.url_of(shard["file"]) for shard in dataset.split.shards)
    return BenchData(
        url=" ".join(urls),
        dataset=dataset,
        layout=layout,
        is_local=storage.is_local,
        root=storage.url_of(_class_folders(dataset, opened)) if opened.one_file_per_image else storage.url,
        files=files,
        why_unreadable=_why_unreadable(dataset, is_local=storage.is_local),
        bytes_per_image=_bytes_per_image(dataset, opened),
    )


def _adopted(request: AdoptRequest, progress: Progress, workers: int) -> str:
    try:
        return adopt(request, progress, workers=workers).url
    except UsageError as error:
        if "--" not in str(error):
            raise
        raise UsageError(
            f"{error}. These are options of `dataprep adopt`: run it, and give the index instead"
        ) from error


def _common_folder(urls: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return the folder that holds all files, and their names in it."""
    scheme, colon, _ = urls[0].rpartition("://")
    paths = [PurePosixPath(url.removeprefix(scheme + colon)) if scheme else Path(url).absolute() for url in urls]
    root = os.path.commonpath([path.parent for path in paths])
    return scheme + colon + root, [str(path.relative_to(root)) for path in paths]


def _class_folders(dataset: Dataset, index: SplitIndex) -> str:
    """Return the folder whose folders are the classes; empty for the root."""
    if not is_adopted(dataset.manifest):
        return dataset.split.name
    shard = next(number for number, entry in enumerate(dataset.split.shards) if entry["samples"])
    entries = index.shard(shard)
    file, label = f"/{index.file_of(shard, entries, 0)}", int(entries.label[0])
    class_name = dataset.manifest.classes[label] if label >= 0 else ""
    return file.partition(f"/{class_name}/")[0].strip("/")


def _why_unreadable(dataset: Dataset, *, is_local: bool) -> str:
    if not is_local:
        return "reads files on a disk, not a bucket"
    return "" if dataset.manifest.classes else "needs labels, the dataset has none"


def _bytes_per_image(dataset: Dataset, index: SplitIndex) -> float:
    shards = [number for number, entry in enumerate(dataset.split.shards) if entry["samples"]]
    some = shards[:: -(-len(shards) // SAMPLED_SHARDS) or 1]
    num_bytes = sum(int(index.shard(shard).image_bytes.sum()) for shard in some)
    return num_bytes / sum(int(dataset.split.shards[shard]["samples"]) for shard in some)
