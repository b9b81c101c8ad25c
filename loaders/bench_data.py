"""The data of a benchmark: a dataset of any origin, as our loader and as others read it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path, PurePosixPath

from dataprep.adopt import AdoptRequest, Progress, adopt, is_adopted, open_linked
from dataprep.errors import UsageError
from dataprep.manifest import read_manifest
from dataprep.storage import open_storage
from loaders.dataset import Dataset, open_dataset
from loaders.rows import SplitRows

INDEX_DEADLINE_S = 60.0
SAMPLED_SHARDS = 64
"""Of which the size of an image is the mean."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchData:
    """One dataset."""

    url: str
    """As it was given; several tars are joined by blanks."""
    dataset: Dataset
    layout: str
    is_local: bool
    root: str
    """Of the split's files as others read them."""
    files: tuple[str, ...]
    """The split's shards, where there are any."""
    closed: str
    """Why others cannot read them as they are; empty where they can."""
    bytes_per_image: float
    """Encoded, mean."""


def grouped(urls: Sequence[str]) -> list[tuple[str, ...]]:
    """The URLs of each dataset: all tars together are one, everything else stands for itself. Braces are expanded."""
    expanded = [each for url in urls for each in expand_braces(url)]
    groups: dict[str, list[str]] = {}
    for url in dict.fromkeys(expanded):
        groups.setdefault("" if url.endswith(".tar") else url, []).append(url)
    return [tuple(group) for group in groups.values()]


def expand_braces(text: str) -> Iterator[str]:
    """`{000..146}` and `{a,b}`, as shells and webdataset expand them."""
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
    """Open a dataset; what has no manifest is indexed in a folder of this machine.

    Args:
        urls: One of `grouped`.
        split: Of the dataset.
        index: Folder for the index of data without one.
        progress: Told what is under way.
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
    elif read_manifest(open_storage(urls[0])) is None:
        dataset_url = _adopted(AdoptRequest(url=urls[0], index_url=str(index)), progress, workers)
    else:
        dataset_url = urls[0]
    dataset = open_dataset(dataset_url, split)
    rows = dataset.rows(INDEX_DEADLINE_S)
    storage = dataset.storage()
    layout = dataset.manifest.format
    files = () if rows.is_folder else tuple(storage.url_of(shard["file"]) for shard in dataset.split.shards)
    return BenchData(
        url=" ".join(urls),
        dataset=dataset,
        layout=layout,
        is_local=storage.is_local,
        root=storage.url_of(_class_folders(dataset, rows)) if rows.is_folder else storage.url,
        files=files,
        closed=_closed(dataset, is_local=storage.is_local),
        bytes_per_image=_bytes_per_image(dataset, rows),
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
    """The folder that holds all files, and their names in it."""
    scheme, colon, _ = urls[0].rpartition("://")
    paths = [PurePosixPath(url.removeprefix(scheme + colon)) if scheme else Path(url).absolute() for url in urls]
    root = os.path.commonpath([path.parent for path in paths])
    return scheme + colon + root, [str(path.relative_to(root)) for path in paths]


def _class_folders(dataset: Dataset, rows: SplitRows) -> str:
    """The folder whose folders are the classes; empty for the root."""
    if not is_adopted(dataset.manifest):
        return dataset.split.name
    shard = next(number for number, entry in enumerate(dataset.split.shards) if entry["samples"])
    found = rows.rows(shard)
    file, label = f"/{rows.file_of(shard, found, 0)}", int(found.label[0])
    class_name = dataset.manifest.classes[label] if label >= 0 else ""
    return file.partition(f"/{class_name}/")[0].strip("/")


def _closed(dataset: Dataset, *, is_local: bool) -> str:
    if not is_local:
        return "reads files on a disk, not a bucket"
    return "" if dataset.manifest.classes else "needs labels, the dataset has none"


def _bytes_per_image(dataset: Dataset, rows: SplitRows) -> float:
    shards = [number for number, entry in enumerate(dataset.split.shards) if entry["samples"]]
    some = shards[:: -(-len(shards) // SAMPLED_SHARDS) or 1]
    num_bytes = sum(int(rows.rows(shard).image_bytes.sum()) for shard in some)
    return num_bytes / sum(int(dataset.split.shards[shard]["samples"]) for shard in some)
