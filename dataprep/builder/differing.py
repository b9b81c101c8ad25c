"""What differs between the plan of a build and another plan or a finished dataset, in the words of a request.

Someone who reads it decides: other options, another output, or `overwrite`. So an option is named by its field, with
both values, and where originals differ the counts say how.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dataprep.builder.plan import Plan
from dataprep.dataset.documents import MAX_CHARACTERS
from dataprep.dataset.manifest import built_as
from dataprep.dataset.records import Manifest, PlannedSource
from dataprep.messages import counted, printable, shortened
from dataprep.sources.unpacked import IMAGE_FILES

SHOWN = 6
"""Maximum number of differences in a message."""
ADDRESS_CHARACTERS = 300
"""Maximum number of characters shown of an address: that of the Hub ends with the commit that continues a build."""
FIELDS = {
    "splits": "split",
    "fake_images": "images",
    "images.short_side": "resize",
    "own.split_seed": "seed",
    "own.defaults": "default",
    "own.pass_over": "exclude",
    "own.archive": "source",
    "converted.fields": "field",
    "converted.all_fields": "field",
    "converted.defaults": "default",
    "columns": "column",
    "rows.duplicates.exact": "exact_duplicates",
    "rows.duplicates.perceptual": "perceptual_duplicates",
    "rows.duplicates.max_distance": "duplicate_distance",
}
"""Fields of requests by the paths of options in plans and manifests, where they are not the last part of the path."""
WORDS = {
    "dataset": "the kind of dataset",
    "converted.plan_hash": "the plan of the dataset that is converted",
    "converted.revision": "the revision of the dataset that is converted",
    "converted.was_shuffled": "the random order of the dataset that is converted",
    "rows.digest": "the hash that is stored",
    "rows.encode.resize_only_if_bigger": "the rule that only larger images are resized",
    "rows.encode.skip_reencode": "the rule that images which fit are stored as they are",
}
"""Names of options that no field decides alone, by the same paths."""
_ABSENT = {"images.jpeg": "untouched", "own.join_classes": False, "converted.all_fields": False}
"""Values of options that documents leave out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Split:
    images: int
    """Number of images, or of rows of tables, with those that a build rejects."""
    shards: int
    files: Mapping[str, tuple[int, str]]
    """Bytes and digest of each original file that is known by name; an empty text where there is no digest."""
    listing: str
    """Digest of the list of originals; empty where it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What a plan and a finished dataset both say about themselves."""

    options: Mapping[str, object]
    """Values of options by their paths."""
    codecs: Mapping[str, str]
    splits: Mapping[str, _Split]
    classes: Sequence[str]
    features: Mapping[str, object] = field(default_factory=dict)
    noun: str = "image"
    """What a split has a number of."""


def plan_differences(ours: Plan, theirs: Plan) -> str:
    """Return in one sentence what differs between two plans."""
    return _sentence(_of_plan(ours), _of_plan(theirs))


def dataset_differences(ours: Plan, theirs: Manifest) -> str:
    """Return in one sentence what differs between a plan and a finished dataset."""
    if "adopted" in theirs.options:
        return "adopted data"
    return _sentence(_of_plan(ours), _of_manifest(theirs))


def _of_plan(plan: Plan) -> _Facts:
    details = dict(plan.document()[plan.options.dataset]) if plan.details is not None else {}
    options = plan.options.document()
    if details:  # as in a manifest, which has no options about images that come from elsewhere
        options = {name: options[name] for name in ("dataset", "format", "splits", "own") if name in options}
        options |= {"rows": details["rows"]} | {name: details["tables"][name] for name in ("columns", "rows_per_shard")}
    splits = {
        split.name: _Split(
            images=sum(split.shard_samples),
            shards=len(split.shard_samples),
            files=_files(split.sources),
            listing="" if details else split.enumeration_sha256,
        )
        for split in plan.splits
    }
    return _Facts(
        options=dict(_leaves(options)),
        codecs=plan.codecs,
        splits=splits,
        classes=plan.classes,
        features=plan.features,
        noun="row" if details else "image",
    )


def _of_manifest(manifest: Manifest) -> _Facts:
    options = dict(manifest.options)
    options.pop("allow_networks", None)
    details = options.get(built_as(manifest))
    if isinstance(details, dict) and "rows" in details:  # of a table of URLs; "converted" is an option of that name
        del options[built_as(manifest)]
        options |= {name: details[name] for name in ("rows", "columns", "rows_per_shard") if name in details}
    splits = {}
    for split in manifest.splits:
        sources = [source for source in manifest.sources if source["split"] == split.name]
        listings = {str(source.get("enumeration_sha256", "")) for source in sources}
        splits[split.name] = _Split(
            images=sum(split.statuses.values()) or split.samples + sum(split.rejected.values()),
            shards=len(split.shards),
            files=_files(sources),
            listing=listings.pop() if len(listings) == 1 else "",
        )
    return _Facts(
        options=dict(_leaves(options)),
        codecs=manifest.codecs,
        splits=splits,
        classes=manifest.classes,
        features=manifest.features,
    )


def _files(sources: Iterable[PlannedSource]) -> dict[str, tuple[int, str]]:
    return {source["name"]: (source["bytes"], source.get("sha256", "")) for source in sources}


def _leaves(document: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if isinstance(value, dict) and f"{path}{name}" not in FIELDS:
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _sentence(ours: _Facts, theirs: _Facts) -> str:
    lines = list(dict.fromkeys(_lines(ours, theirs)))
    more = f"; and {counted(len(lines) - SHOWN, 'more difference')}" if len(lines) > SHOWN else ""
    return "; ".join(lines[:SHOWN]) + more if lines else "other originals"


def _lines(ours: _Facts, theirs: _Facts) -> Iterator[str]:
    yield from _option_lines(ours.options, theirs.options)
    for name in sorted(ours.codecs.keys() | theirs.codecs.keys()):
        there, here = theirs.codecs.get(name, "not used"), ours.codecs.get(name, "not used")
        if there != here:
            yield f"{printable(name)} is {_text(there)} there, {here} here"
    for name in dict.fromkeys([*ours.splits, *theirs.splits]):
        yield from _split_lines(printable(name), ours.splits.get(name), theirs.splits.get(name), ours.noun)
    yield from _name_lines("class", ours.classes, theirs.classes)
    yield from _name_lines("feature", ours.features, theirs.features)
    if list(ours.features) == list(theirs.features) and ours.features != theirs.features:
        yield "the features have other types here"


def _option_lines(ours: Mapping[str, object], theirs: Mapping[str, object]) -> Iterator[str]:
    named: set[str] = set()
    for path in dict.fromkeys([*ours, *theirs]):
        here, there = (side.get(path, _ABSENT.get(path)) for side in (ours, theirs))
        label = WORDS.get(path) or f"`{field_of(path)}`"
        if here != there and label not in named:
            named.add(label)
            yield f"{label} is {_text(there)} there, {_text(here)} here"


def field_of(path: str) -> str:
    """Return the field of a request that decides an option of plans and manifests."""
    return FIELDS.get(path, path.rpartition(".")[2])


def _split_lines(name: str, ours: _Split | None, theirs: _Split | None, noun: str) -> Iterator[str]:
    if ours is None or theirs is None:
        only, where = (ours, "here") if theirs is None else (theirs, "there")
        if only is not None:
            yield f"{name} is only {where}, with {counted(only.images, noun)}"
        return
    if ours.images != theirs.images:
        yield f"{name} has {counted(theirs.images, noun)} there, {ours.images:,} here"
    elif ours.shards != theirs.shards:
        yield f"{name} has {counted(theirs.shards, 'shard')} there, {ours.shards:,} here"
    elif ours.files != theirs.files:
        yield from _file_lines(ours.files, theirs.files)
    elif ours.listing != theirs.listing and ours.listing and theirs.listing:
        yield f"{name} has {counted(ours.images, noun)} there and here, but files of other names, sizes or classes"


def _file_lines(ours: Mapping[str, tuple[int, str]], theirs: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    for name in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get(name), theirs.get(name)
        shown = shortened(printable(name), MAX_CHARACTERS)
        if here is None or there is None:
            yield f"the original {shown} is only {'here' if there is None else 'there'}"
        elif here[0] != there[0]:
            what = "files in folders have together" if name == IMAGE_FILES else f"the original {shown} has"
            yield f"{what} {there[0]:,} bytes there, {here[0]:,} here"
        elif here != there:
            yield f"the original {shown} has the same size there and here, but another SHA-256"


def _name_lines(noun: str, ours: Iterable[str], theirs: Iterable[str]) -> Iterator[str]:
    here, there = list(ours), list(theirs)
    if len(here) != len(there):
        yield f"there are {counted(len(there), noun)} there, {len(here):,} here"
    elif here != there:
        only_here, only_there = ([name for name in a if name not in b] for a, b in ((here, there), (there, here)))
        if only_here and only_there:
            yield f"the {noun} {_text(only_there[0])} is only there, {_text(only_here[0])} only here"


def _text(value: object) -> str:
    if value is True:
        return "given"
    if value is None or value is False or value in ("", [], {}):
        return "not given"
    if isinstance(value, dict):
        text = ", ".join(f"{name}={each}" for name, each in value.items())
    elif isinstance(value, list):
        text = ", ".join("=".join(map(str, each)) if isinstance(each, list) else str(each) for each in value)
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return shortened(printable(text), ADDRESS_CHARACTERS if text.startswith("https://") else MAX_CHARACTERS)
