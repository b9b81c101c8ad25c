"""The part of a manifest that only datasets of fetched images have, and the names of their files.

All functions are pure functions of the manifest. If `option_faults` yields nothing, its options can be read.
"""

from __future__ import annotations

from collections.abc import Iterator

from dataprep.dataset.manifest import built_as, source_faults
from dataprep.dataset.records import Manifest
from dataprep.errors import FormatError, UsageError
from dataprep.fetched.names import FETCHED_FORMATS, ShardNames, built_names
from dataprep.fetched.plan import LaionOptions, options_from
from dataprep.formats.img2dataset import STATUSES
from dataprep.messages import quoted
from dataprep.sources import BUILT
from dataprep.sources.laion import RENAMED, ROLES, SPLIT

_TABLE_FIELDS = ("split", "name", "bytes", "rows", "sha256")


def is_fetched(manifest: Manifest) -> bool:
    """Return whether a build has fetched the images of a dataset."""
    dataset = BUILT.get(built_as(manifest))
    return dataset is not None and dataset.recipe == "web"


def laion_options(manifest: Manifest) -> LaionOptions:
    """Return the options of a fetched dataset's manifest in which `option_faults` found nothing."""
    name = built_as(manifest)
    return options_from(manifest.options.get(name), where="manifest", at=f"$.options.{name}")


def option_faults(manifest: Manifest) -> Iterator[str]:
    """Yield faults because of which sources, options or counts cannot be read."""
    yield from source_faults(manifest, _TABLE_FIELDS)
    if manifest.format not in FETCHED_FORMATS:
        yield f"format {quoted(manifest.format)}, expected {' or '.join(FETCHED_FORMATS)}"
    networks = manifest.options.get("allow_networks")
    if not isinstance(networks, list) or not all(isinstance(text, str) for text in networks):
        yield f"options.allow_networks is {quoted(networks)}, expected a list of networks"
    try:
        options = laion_options(manifest)
        carried = {name for name, _ in options.carried}
        sound = "url" in options.columns and options.columns.keys() <= ROLES.keys()
        sound &= all(role in RENAMED or name in carried for role, name in options.columns.items())
        problem = "" if sound else "an unknown role, or one whose column is not among those carried"
    except (FormatError, UsageError) as error:
        problem = str(error)
    if problem:
        yield f"options.{built_as(manifest)} cannot be read ({problem})"
    for split in manifest.splits:
        if set(split.statuses) != set(STATUSES):
            yield f"split {split.name}: statuses {quoted(sorted(split.statuses))}, expected {', '.join(STATUSES)}"


def sidecars_of(manifest: Manifest, number: int) -> tuple[str, str]:
    """Return the names of a shard's parquet file and of its stats."""
    names = names_of(manifest)
    return names.parquet_file(number), names.stats_file(number)


def sidecar_names(manifest: Manifest) -> frozenset[str]:
    """Return the names of the sidecars of all shards."""
    names = names_of(manifest)
    numbers = range(len(manifest.splits[0].shards))
    return frozenset(name_of(number) for number in numbers for name_of in (names.parquet_file, names.stats_file))


def names_of(manifest: Manifest) -> ShardNames:
    """Return the names of the files in a dataset's shards."""
    return built_names(manifest.name, manifest.format, SPLIT, laion_options(manifest).shard_digits)


def sidecar_faults(manifest: Manifest) -> Iterator[str]:
    """Yield a line for sidecars that are not listed, and one for files that are not sorted by name."""
    listed = [entry["file"] for entry in manifest.files]
    missing = sorted(sidecar_names(manifest) - set(listed))
    if missing:
        yield f"files: {len(missing):,} are not listed, the first is {missing[0]}"
    if listed != sorted(set(listed)):
        yield "files are not sorted by name, or one occurs twice"
