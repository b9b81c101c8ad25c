"""A finished dataset as its manifest describes it: checks of its names, all its names, its metadata files, and how
another revision of it is published.

Anyone may have written the manifest. If `shape_faults` and `layout_faults` find nothing, every file name in it is one
that recipe and format derive, so files that are opened later never depend on a hostile string.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import PurePosixPath
from typing import Annotated, TypeVar

from msgspec import Meta

from dataprep.arrays import pa
from dataprep.builder.plan import Plan
from dataprep.builder.recipe import recipe_of
from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.documents import Count, convert, decode
from dataprep.dataset.features import FILE_NAME, NO_FEATURES, Feature, Features
from dataprep.dataset.index import ANNOTATIONS, grown_entry, index_files, index_schema, open_index, spool_row_groups
from dataprep.dataset.manifest import (
    MANIFEST,
    built_as,
    bytes_entry,
    digest_faults,
    manifest_bytes,
    no_dataset,
    read_manifest,
    schema_version,
)
from dataprep.dataset.paths import CHANGE, CHANGE_JSON
from dataprep.dataset.records import NO_LABEL, IndexEntry, Manifest, SplitManifest
from dataprep.dataset.replicas import REPLICAS
from dataprep.dataset.revisions import REMOVED, first_shards, removed_entries
from dataprep.errors import ConflictError, FormatError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.base import DatasetInfo
from dataprep.formats.imagefolder import image_file, image_suffix, numbering_fault, repeat_links
from dataprep.formats.tfds import OWN_NAMES, TfdsNames
from dataprep.messages import quoted
from dataprep.sources import BUILT, base, recorded_class
from dataprep.storage import ObjectInfo, Storage
from dataprep.storage.base import read_bounded
from dataprep.storage.checksums import digests_of

_DIGITS = re.compile(r"\d{5,}")


def readable_manifest(storage: Storage) -> Manifest:
    """Return the manifest of a dataset after checking that recipe and format derive every name in it. Raises UsageError
    if there is no dataset, and FormatError if its manifest is not one that a build writes."""
    manifest = read_manifest(storage)
    if manifest is None:
        raise no_dataset(storage)
    for find in () if is_adopted(manifest) else (shape_faults, layout_faults):
        for fault in find(manifest):
            raise FormatError(f'{storage.url_of(MANIFEST)}: {fault}; see all faults with "dataprep verify"')
    return manifest


def shape_faults(manifest: Manifest) -> Iterator[str]:
    """Yield faults that prevent any other check of a manifest: unknown names and malformed digests."""
    dataset = _class_of(manifest)
    if dataset is None:
        yield f"name {quoted(built_as(manifest))}, expected one of {', '.join(BUILT)}"
    yield from _own_faults(manifest, dataset)
    yield from digest_faults(manifest)
    for split in manifest.splits:
        if isinstance(dataset, base.FinishedDataset):
            yield from filter(None, [base.split_fault(split.name)])
        elif dataset is not None and split.name not in dataset.splits:
            yield f"split {quoted(split.name)}, expected one of {', '.join(dataset.splits)}"
    if dataset is not None:
        yield from recipe_of(built_as(manifest)).shape_faults(manifest)


def _class_of(manifest: Manifest) -> base.Dataset | None:
    """Return the dataset class that a manifest names; None if no such class could have built it."""
    return recorded_class(built_as(manifest)) if "own" in manifest.options else BUILT.get(manifest.name)


def _own_faults(manifest: Manifest, dataset: base.Dataset | None) -> Iterator[str]:
    """Yield faults of `options.own`, which only manifests of user-named data have, and of declared features."""
    is_named = isinstance(dataset, base.NamedDataset) and (not dataset.is_published or "own" in manifest.options)
    if dataset is None or dataset.is_published:
        if "own" in manifest.options and not is_named:
            yield f"options.own, which {quoted(built_as(manifest))} does not have"
        elif dataset is not None:
            yield from _feature_faults(manifest, dataset)
    if not is_named:
        return
    try:
        own = _own_of(manifest)
    except (FormatError, UsageError) as error:
        yield f"options.own cannot be read ({error})"
        return
    taken = frozenset() if isinstance(dataset, base.FinishedDataset) else frozenset(BUILT)
    if own.name != manifest.name or base.name_fault(manifest.name, taken):
        yield f"name {quoted(manifest.name)}, expected {quoted(own.name)}, and a name that `build` takes"


def _feature_faults(manifest: Manifest, dataset: base.Dataset) -> Iterator[str]:
    """Yield a fault if the manifest's features differ from the features that its dataset declares."""
    try:
        declared = dict(_with_annotations(dataset, manifest).features)
        if tfds_names(manifest).name:
            declared[FILE_NAME] = Feature("text")
    except (FormatError, UsageError) as error:
        yield f"options.annotations cannot be read ({error})"
        return
    if manifest.features != declared:
        odd = sorted(
            name for name in {*declared, *manifest.features} if declared.get(name) != manifest.features.get(name)
        )
        yield f"features {quoted(odd)}, which {quoted(built_as(manifest))} does not have"


def _with_annotations(dataset: base.Dataset, manifest: Manifest) -> base.Dataset:
    """Return coco with the annotations that its manifest names; other datasets unchanged. Raises FormatError or
    UsageError if they are not kinds of annotations."""
    found = manifest.options.get("annotations")
    if found is None:
        return dataset
    from dataprep.sources.coco import AnnotatedCoco

    if not isinstance(dataset, AnnotatedCoco):
        return dataset
    advice = "build it again"
    return dataset.with_annotations(
        convert(found, tuple[str, ...], where="manifest", at="$.options.annotations", advice=advice)
    )


def dataset_of(manifest: Manifest) -> base.Dataset:
    """Return the dataset that a manifest names: a generated one with its size, user data with its description.

    Expects no shape faults.
    """
    dataset, images = _class_of(manifest), manifest.options.get("fake_images")
    if dataset is None:
        raise UsageError(f"no dataset is called {quoted(built_as(manifest))}; expected one of {', '.join(BUILT)}")
    if isinstance(dataset, base.FinishedDataset):
        dataset = dataset.of_splits({split.name: split.repeats["count"] for split in manifest.splits})
    if isinstance(dataset, base.NamedDataset) and (not dataset.is_published or "own" in manifest.options):
        return dataset.described_by(_own_of(manifest))
    if isinstance(images, int) and 1 <= images <= base.MAX_SAMPLES:
        from dataprep.sources.imagenet import FakeImageNet

        if isinstance(dataset, FakeImageNet):
            return dataset.with_images(images)
    return _with_annotations(dataset, manifest)


def _own_of(manifest: Manifest) -> base.OwnData:
    """Return the user's statements about their own data. Raises FormatError or UsageError if they are malformed."""
    own = manifest.options.get("own")
    return convert(own, base.OwnData, where="manifest", at="$.options.own", advice="build it again")


def layout_faults(manifest: Manifest) -> Iterator[str]:
    """Yield splits, repeats and file names that recipe and format would not give. Expects no shape faults."""
    recipe, dataset = recipe_of(built_as(manifest)), dataset_of(manifest)
    splits = [split.name for split in manifest.splits]
    if not splits or max(Counter(splits).values()) > 1:
        yield f"splits {', '.join(splits) or 'none'}, expected each once and at least one"
    for split in manifest.splits:
        count = dataset.repeats(split.name)
        repeats = {"count": count, "stored": count if manifest.options.get("repeat") == "physical" else 1}
        if split.repeats != repeats:
            yield f"split {split.name}: repeats {quoted(split.repeats)}, expected {quoted(repeats)}"
        numbers = [shard_number(manifest, split, position) for position in range(len(split.shards))]
        for position, (number, shard) in enumerate(zip(numbers, split.shards, strict=True)):
            if number is None:
                due = recipe.shard_file(manifest, split, position)
                yield f"split {split.name}: shard {position} is {quoted(shard['file'])}, expected {due}"
        if len({*numbers} - {None}) < len(numbers) - numbers.count(None):
            yield f"split {split.name}: two shards have the same name"
    try:
        known = recipe.metadata_files(manifest).keys() | recipe.sidecar_files(manifest)
    except FormatError as error:
        yield str(error)
        return
    for name in sorted({entry["file"] for entry in manifest.files} - known):
        yield f"files: {quoted(name)} is not a file that a build writes"
    yield from recipe.layout_faults(manifest)


def shard_number(manifest: Manifest, split: SplitManifest, position: int) -> int | None:
    """Return the number in a shard's name, usually its position; None if no build gives this name."""
    file, recipe = split.shards[position]["file"], recipe_of(built_as(manifest))
    is_changed = any(change.split == split.name for change in manifest.changes)
    candidates = (position, *(map(int, _DIGITS.findall(file)) if is_changed else ()))
    return next((number for number in candidates if recipe.shard_file(manifest, split, number) == file), None)


def shard_file(manifest: Manifest, split: SplitManifest, number: int) -> str:
    """Return the name of the shard with a number."""
    return recipe_of(built_as(manifest)).shard_file(manifest, split, number)


def shard_numbers(manifest: Manifest, split: SplitManifest) -> list[int]:
    """Return the number in each shard's name. Expects no layout faults."""
    return [shard_number(manifest, split, position) or 0 for position in range(len(split.shards))]


def next_number(manifest: Manifest, split: SplitManifest, more: int) -> int:
    """Return the number of the first of `more` new shards of a split, which none of its shards has had.

    Raises:
        UsageError: The new numbers would have more digits than the existing ones.
    """
    first = max(shard_numbers(manifest, split), default=-1) + 1
    recipe = recipe_of(built_as(manifest))
    if more and len(recipe.shard_file(manifest, split, first + more - 1)) > len(recipe.shard_file(manifest, split, 0)):
        raise UsageError(
            f"{manifest.name}: shards up to number {first + more - 1:,} need longer names than the existing ones; "
            "convert the dataset, which numbers its shards again"
        )
    return first


def samples_by_number(manifest: Manifest, split: SplitManifest) -> list[int]:
    """Return the samples of the shard with each number in its name; 0 where no shard has the number any more."""
    numbers = shard_numbers(manifest, split)
    found = [0] * (max(numbers, default=-1) + 1)
    for number, shard in zip(numbers, split.shards, strict=True):
        found[number] = shard["samples"]
    return found


def numbering_faults(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield each split of an image folder whose labels other readers number differently, and the reason."""
    if FORMATS[manifest.format].one_file_per_image:
        for split in manifest.splits:
            if fault := numbering_fault(manifest.classes, split.class_counts):
                yield split.name, fault


def image_root(manifest: Manifest, split: SplitManifest) -> str:
    """Return the folder of a split's images, for formats with one file per image."""
    return FORMATS[manifest.format].image_root(split.name, split.repeats["stored"])


def links_repeats(manifest: Manifest, split: SplitManifest) -> bool:
    stored = split.repeats["stored"]
    return FORMATS[manifest.format].passes_written(stored) < stored


def dataset_names(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """Yield the names of a finished dataset, as listed by its manifest and, for an image folder, by its index. Raises
    UsageError if the index of an image folder cannot be read, so the dataset's images are unknown."""
    yield from listed_names(manifest)
    for split in manifest.splits if FORMATS[manifest.format].one_file_per_image else ():
        try:
            images = (name for name, _ in indexed_images(storage, manifest, split))
            yield from with_links(images, split.name, split.repeats["count"] * links_repeats(manifest, split))
        except (FormatError, FileNotFoundError) as error:
            raise UsageError(
                f"{error}. `overwrite` removes the images that the index lists, and cannot find them here: remove "
                f"{storage.url} yourself, or choose another `output`"
            ) from error


def listed_names(manifest: Manifest) -> set[str]:
    """Return the names of a finished dataset, except images that are separate files."""
    names = {MANIFEST, REPLICAS, *(entry["file"] for entry in (*manifest.files, *removed_entries(manifest)))}
    for split in manifest.splits:
        names.update(entry["file"] for entry in (*index_files(split), split.events))
        for shard in split.shards:
            names.update(FORMATS[manifest.format].stored_files(shard["file"]))
    return names


def with_links(images: Iterable[str], split: str, links: int) -> Iterator[str]:
    """Yield the names of a split's images, then of the links to each of their folders, of which there are `links`."""
    folders: set[str] = set()
    for name in images:
        folders.add(name.split("/")[1])
        yield name
    yield from (link for link, _ in repeat_links(sorted(folders), links, split=split))


def indexed_images(storage: Storage, manifest: Manifest, split: SplitManifest) -> Iterator[tuple[str, int]]:
    """Yield name and size in bytes of each file in a split of an image folder, from its index.

    Raises:
        FormatError, FileNotFoundError: The index cannot be read.
    """
    for batch in open_index(storage, split).batches(["key", "label", "image_bytes"]):
        yield from zip(image_names(manifest, split, batch), batch.column("image_bytes").to_pylist(), strict=True)


def image_names(manifest: Manifest, split: SplitManifest, rows: pa.Table) -> Iterator[str]:
    """Yield the names of the files of an image folder that rows of its index describe."""
    return image_files(rows, image_root(manifest, split), manifest.classes, built_as(manifest))


def image_files(rows: pa.Table | pa.RecordBatch, root: str, classes: Sequence[str], dataset: str) -> Iterator[str]:
    """Yield the file of each row with a key and a label below `root`, the folder of a split's images. Its suffix
    depends on the class of the dataset."""
    suffix, columns = image_suffix(dataset), (rows.column(name).to_pylist() for name in ("key", "label"))
    for key, label in zip(*columns, strict=True):
        yield image_file(root, key, "" if label == NO_LABEL else classes[label], suffix)


def metadata_of(manifest: Manifest, dataset: base.Dataset, names: TfdsNames) -> dict[str, bytes]:
    """Return the format's own metadata files, name to content, sorted by name. Raises FormatError if a class name
    cannot be written to such files."""
    samples = {split.name: samples_by_number(manifest, split) for split in manifest.splits}
    num_bytes = {split.name: split.num_bytes for split in manifest.splits}
    info = described(dataset, manifest.classes, samples, num_bytes, manifest.features, names)
    built = {names.split(each.split): first_shards(manifest, each.split, 0) for each in manifest.changes}
    return dict(sorted(FORMATS[manifest.format].metadata_files(replace(info, built_shards=built)).items()))


def described(
    dataset: base.Dataset,
    classes: tuple[str, ...],
    shard_samples: Mapping[str, Sequence[int]],
    split_bytes: Mapping[str, int],
    features: Features = NO_FEATURES,
    names: TfdsNames = OWN_NAMES,
) -> DatasetInfo:
    """Return the facts about a dataset that a format writes; see `DatasetInfo`."""
    return DatasetInfo(
        name=names.name or dataset.name,
        description=dataset.description,
        citation=dataset.citation,
        licence=dataset.licence,
        classes=classes,
        shard_samples={names.split(split): samples for split, samples in shard_samples.items()},
        split_bytes={names.split(split): num_bytes for split, num_bytes in split_bytes.items()},
        features=features,
        version=names.version,
    )


def tfds_names(manifest: Manifest) -> TfdsNames:
    """Return the names of a dataset in TFDS. Raises FormatError or UsageError if they are malformed."""
    found = manifest.options.get("tfds")
    if found is None:
        return OWN_NAMES
    return convert(found, TfdsNames, where="manifest", at="$.options.tfds", advice="build it again")


def planned_metadata(plan: Plan) -> tuple[str, ...]:
    """Return the names of the format's own metadata files."""
    dataset = recorded_class(plan.options.dataset) or base.FINISHED
    samples = {split.name: split.shard_samples for split in plan.splits}
    info = described(dataset, plan.classes, samples, dict.fromkeys(samples, 0), plan.features)
    return tuple(sorted(FORMATS[plan.options.format].metadata_files(info)))


# Changes of a finished dataset

MAX_PLAN_BYTES = 64 << 20
"""Maximum size of the plan of a change."""
CHANGE_ADVICE = f"remove {CHANGE}/"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePlan:
    """The plan of a change, as `_change/plan.json` holds it: who changes which revision, and which files it needs.

    While it exists, no other change begins. Its files are published under new names, then the metadata files and the
    manifest are replaced (`publish_revision`), then the files that are not needed any more are removed (`end_change`).
    """

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    kind: str
    """Name of the command."""
    revision: Count
    """Revision of the manifest at the beginning."""
    manifest_sha256: str
    cards: dict[str, str] = field(default_factory=dict)
    """SHA-256 digests of the dataset's unedited cards, by name; these cards are replaced."""
    new: tuple[str, ...] = ()
    """Files that the change puts in place."""
    old: tuple[str, ...] = ()
    """Files that it removes when it is published."""

    @property
    def root(self) -> str:
        return f"{CHANGE}/{self.id}"


C = TypeVar("C", bound=ChangePlan)


def read_change(storage: Storage, kind: type[C]) -> C | None:
    """Read the plan of an interrupted or running change, as one command's class or as `ChangePlan`, which has what all
    of them share; None if there is none. Raises FormatError."""
    data = read_bounded(storage, CHANGE_JSON, MAX_PLAN_BYTES, advice=CHANGE_ADVICE)
    where = f"{storage.url_of(CHANGE_JSON)}: not a plan of a change"
    return None if data is None else decode(data, kind, where=where, advice=CHANGE_ADVICE)


def begin_change(storage: Storage, plan: ChangePlan) -> bool:
    """Store the plan of a change; if another process has begun one, remove this one's files and return False. Raises
    UsageError if the plan is too large."""
    document = json.dumps(asdict(plan), indent=1).encode()
    if len(document) > MAX_PLAN_BYTES:
        what = f"{len(plan.old):,} files to replace, too many for one plan"
        raise UsageError(f"{storage.url}: {what}; change the dataset in several runs")
    try:
        storage.create(CHANGE_JSON, document)
    except ConflictError:
        storage.delete_tree(plan.root)
        return False
    return True


def change_names(manifest: Manifest, plan: ChangePlan | None) -> set[str]:
    """Return the files that a change puts in place or removes: only names that a dataset can have, because anyone may
    have written the plan."""
    recipe, names = recipe_of(built_as(manifest)), set() if plan is None else {*plan.new, *plan.old}
    roots = (folder for split in manifest.splits for folder in (split.name, image_root(manifest, split)))
    folders = {"index", REMOVED, *roots}

    def is_shard(name: str) -> bool:
        numbers = [int(digits) for digits in _DIGITS.findall(name)]
        return any(recipe.shard_file(manifest, split, n) == name for split in manifest.splits for n in numbers)

    return {name for name in names if name.partition("/")[0] in folders or is_shard(name)}


def refuse_other_change(storage: Storage, kind: str) -> None:
    """Raise UsageError if another command's change of the dataset is not finished."""
    plan = read_change(storage, ChangePlan)
    if plan is not None and plan.kind != kind:
        raise UsageError(f"{storage.url}: dataprep {plan.kind} is not finished there; run it again first")


def refuse_overtaken_change(storage: Storage, root: str) -> None:
    """Raise ConflictError if a change's plan is gone: the dataset was overwritten, or another process finished it."""
    try:
        current = read_change(storage, ChangePlan)
    except FormatError:
        current = None
    if current is None or current.root != root:
        raise ConflictError(changed(storage))


def changed(storage: Storage) -> str:
    """Return the error text for a dataset that another process has changed."""
    return f"{storage.url}: another process has changed the dataset meanwhile; run the same command again"


def publish_revision(storage: Storage, manifest: Manifest, data: bytes, new: Manifest) -> Manifest:
    """Replace a dataset's metadata files and then its manifest, and return the new one. Raises ConflictError if another
    process has changed the dataset meanwhile.

    Args:
        data: Content of `dataset.json` when it was read.
        new: The manifest to publish, except revision, schema version and entries of metadata files.
    """
    described = recipe_of(built_as(new)).metadata_files(new)
    entries = {entry["file"]: entry for entry in new.files}
    entries |= {name: bytes_entry(name, content) for name, content in described.items()}
    new = replace(
        new,
        schema_version=schema_version(new.splits),
        revision=manifest.revision + 1,
        files=tuple(entries[name] for name in sorted(entries)),
    )
    listed = {entry["file"]: entry["sha256"] for entry in manifest.files}
    for name, content in described.items():
        before = storage.read(name)
        if before != content and hashlib.sha256(before).hexdigest() != listed.get(name):
            raise ConflictError(changed(storage))
        _replace(storage, name, content, before)
    _replace(storage, MANIFEST, manifest_bytes(new), data)
    return new


def end_change(storage: Storage, root: str, names: Iterable[str]) -> None:
    """Remove a change's files that the manifest does not list, and then the change's own state.

    The plan is removed after the files that it names, so that the same command continues an interrupted removal. If the
    stored plan is another change's, nothing is removed.
    """
    current = read_change(storage, ChangePlan)
    if current is not None:
        if current.root != root:
            return
        storage.take_away(root)  # after this no worker of the change can put a file in place
        manifest = read_manifest(storage)  # another process may have ended the change
        unlisted = [] if manifest is None else sorted({*names} - listed_names(manifest))
        delete_files(storage, unlisted)
        storage.delete(CHANGE_JSON)
    storage.delete_tree(CHANGE)
    storage.remove_stale_spools()


def delete_files(storage: Storage, names: Iterable[str]) -> None:
    """Delete files, and folders that are empty without them."""
    folders: set[str] = set()
    for name in names:
        storage.delete(name)
        folders.update(map(str, PurePosixPath(name).parents))
    storage.prune(folders - {"."})


def replace_index(storage: Storage, split: SplitManifest, added: Iterator[pa.Table], shards: int) -> IndexEntry:
    """Replace an index, or its last part, with one that has the unchanged old row groups, then the rows `added` by each
    of so many new shards."""
    last = index_files(split)[-1]
    name, first = last["file"], sum(part["shards"] for part in split.index.get("parts", [])[:-1])
    with storage.open(name) as stream:
        existing = digests_of(stream)
    table = open_index(storage, split)
    schema = index_schema(with_annotations=ANNOTATIONS in table.columns)
    old = (table.read_group(number) for number in range(first, len(split.shards)))
    spool, digests = spool_row_groups(storage, name, chain(old, added), schema)
    expected = ObjectInfo(name, existing.num_bytes, existing.crc32c)
    ours = existing.sha256 in (last["sha256"], digests.sha256)
    if not ours or not storage.replace_file(spool, name, digests.crc32c, expected):
        spool.unlink(missing_ok=True)
        raise ConflictError(changed(storage))
    return grown_entry(split, {"file": name, "bytes": digests.num_bytes, "sha256": digests.sha256}, shards)


def _replace(storage: Storage, name: str, data: bytes, before: bytes) -> None:
    if data != before and not storage.replace(name, data, before) and storage.read(name) != data:
        raise ConflictError(changed(storage))
