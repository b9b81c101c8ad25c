"""Conversions in this process, and what must be the same before and after them."""

from __future__ import annotations

from typing import Any

from dataprep.builder.archives import ConversionRequest
from dataprep.builder.plan import BuildOptions
from dataprep.dataset.adopted import check_named, links_of, open_data
from dataprep.dataset.index import ANNOTATIONS, open_index
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import Manifest
from dataprep.sources.base import UNSTATED, Conversion, OwnData, name_from
from dataprep.storage import open_storage
from tests.support.adoption import read_all
from tests.support.build_here import whole


def request(url: object, output: object, fmt: str = "webdataset", **more: Any) -> ConversionRequest:
    """A request to convert all splits, in two shards each; options of Conversion by `how`, and of BuildOptions."""
    index = open_storage(str(url))
    manifest = read_manifest(index)
    named = check_named(index, manifest)
    how = {
        "plan_hash": manifest.plan_hash,
        "revision": manifest.revision,
        "was_shuffled": manifest.shuffled,
    } | more.pop("how", {})
    return ConversionRequest(
        options=BuildOptions(
            dataset="converted",
            format=fmt,
            **{
                "splits": tuple(split.name for split in manifest.splits),
                "own": OwnData(
                    name=name_from(manifest.name), licence=manifest.licence or UNSTATED, origin=manifest.origin
                ),
                "converted": Conversion(**how),
                "num_shards": 2,
            }
            | more,
        ),
        source_url=open_data(index, manifest, named=named).url,
        output_url=str(output),
        max_reject_ratio=0.0,
        index_url=index.url,
        links=links_of(manifest, named=named),
    )


def converted(url: object, output: object, fmt: str = "webdataset", **more: Any) -> Manifest:
    """Convert, and return the manifest; the `progress` hears of it."""
    progress = more.pop("progress", None)
    return whole(request(url, output, fmt, **more), progress)


def content(url: object) -> dict[str, Any]:
    """What a conversion keeps: classes, features, and for each split its passes and samples."""
    storage = open_storage(str(url))
    manifest = read_manifest(storage)
    splits = {}
    for split in manifest.splits:
        samples, rows = read_all_of(url, split.name)
        splits[split.name] = (split.repeats["count"], dict(zip(samples, rows, strict=True)))
    return {"classes": manifest.classes, "features": manifest.features, "splits": splits}


def read_all_of(url: object, split: str) -> tuple[list[tuple[str, int, str]], list[int | None]]:
    """Every sample of a split as (key, label, SHA-256 of its image), and the checksum of its annotations."""
    storage = open_storage(str(url))
    manifest = read_manifest(storage)
    found = next(each for each in manifest.splits if each.name == split)
    if manifest.format == "imagefolder":
        samples = folder_samples(url, split)
    else:
        samples = [(key, label, sha256) for key, label, sha256, _ in read_all(url, split)[0]]
    table = open_index(storage, found)
    groups = [table.read_group(number) for number in range(len(found.shards))]
    sums = [
        crc32c
        for group in groups
        for crc32c in (group.column(ANNOTATIONS).to_pylist() if manifest.features else [None] * group.num_rows)
    ]
    return samples, sums


def folder_samples(url: object, split: str) -> list[tuple[str, int, str]]:
    """Every sample of a split of an image folder, which has a file for each."""
    import hashlib

    from loaders.dataset import open_dataset

    dataset = open_dataset(str(url), split)
    index = dataset.open_index(5.0)
    found = []
    for shard in range(len(dataset.split.shards)):
        entries = index.shard(shard)
        for entry in range(len(entries)):
            image = dataset.storage.read(index.file_of(shard, entries, entry))
            found.append((entries.key(entry), int(entries.label[entry]), hashlib.sha256(image).hexdigest()))
    return found
