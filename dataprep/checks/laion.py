"""What the manifest of a table of URLs says more than others, and which files it may name.

Pure functions of the manifest. Once `laion_faults` finds nothing, its options can be read.
"""

from __future__ import annotations

from collections.abc import Iterator

from dataprep.errors import UsageError
from dataprep.laion.collect import STATUSES
from dataprep.laion.names import ShardNames, built_names
from dataprep.laion.plan import LaionOptions, options_from
from dataprep.records import Manifest
from dataprep.sources.laion import LAION, RENAMED, ROLES, SPLIT

MAX_DIGITS = 12
MAX_TEXT = 200


def is_laion(manifest: Manifest) -> bool:
    """Whether its originals are tables of URLs."""
    return manifest.name == LAION.name


def laion_options(manifest: Manifest) -> LaionOptions:
    """The options of such a manifest, in which `laion_faults` found nothing."""
    return options_from(manifest.options["laion"])


def laion_faults(manifest: Manifest) -> Iterator[str]:
    """What keeps options and counts from being read."""
    if not isinstance(manifest.options, dict):
        return  # told already
    networks = manifest.options.get("allow_networks")
    if not isinstance(networks, list) or not all(isinstance(text, str) for text in networks):
        yield f"options.allow_networks is {_shown(networks)}, expected a list of networks"
    try:
        options = laion_options(manifest)
        columns = (*options.columns.items(), *((name, kind) for name, kind in options.carried))
        sound = all(isinstance(text, str) for pair in columns for text in pair)
        sound &= options.columns.keys() <= ROLES.keys() and {kind for _, kind in options.carried} <= {
            "int",
            "float",
            "string",
        }
        carried = {name for name, _ in options.carried}
        sound &= "url" in options.columns
        sound &= all(role in RENAMED or name in carried for role, name in options.columns.items())
        sound &= options.rows_per_shard >= 1 and 1 <= options.shard_digits <= MAX_DIGITS
        problem = "" if sound else "a value of another type, or out of range"
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        yield f"options.laion cannot be read ({problem[:MAX_TEXT]})"
    for split in manifest.splits:
        if isinstance(split.statuses, dict) and set(split.statuses) != set(STATUSES):
            yield f"split {split.name}: statuses {_shown(sorted(split.statuses))}, expected {', '.join(STATUSES)}"


def file_of(manifest: Manifest, number: int) -> str:
    """The samples' file of a shard."""
    return _names(manifest).samples_file(number)


def files_beside(manifest: Manifest, number: int) -> tuple[str, str]:
    """The parquet file of a shard and its stats."""
    names = _names(manifest)
    return names.parquet_file(number), names.stats_file(number)


def names_beside(manifest: Manifest) -> set[str]:
    """The files beside all shards."""
    names = _names(manifest)
    numbers = range(len(manifest.splits[0].shards))
    return {name_of(number) for number in numbers for name_of in (names.parquet_file, names.stats_file)}


def _names(manifest: Manifest) -> ShardNames:
    return built_names(manifest.format, SPLIT, laion_options(manifest).shard_digits)


def beside_faults(manifest: Manifest) -> Iterator[str]:
    """Files beside the shards that are not listed, and an order that is not that of names."""
    listed = [entry["file"] for entry in manifest.files]
    missing = sorted(names_beside(manifest) - set(listed))
    if missing:
        yield f"files: {len(missing):,} are not listed, the first is {missing[0]}"
    if listed != sorted(set(listed)):
        yield "files are not sorted by name, or one is there twice"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
