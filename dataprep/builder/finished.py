"""A finished dataset as its manifest describes it: checks of its names, all its names, and its metadata files.

Anyone may have written the manifest. If `shape_faults` and `layout_faults` find nothing, every file name in it is one
that recipe and format derive, so files that are opened later never depend on a hostile string.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dataprep.builder.plan import Plan
from dataprep.builder.recipe import recipe_of
from dataprep.dataset.adopted import is_adopted
from dataprep.dataset.documents import convert
from dataprep.dataset.features import FILE_NAME, NO_FEATURES, Feature, Features
from dataprep.dataset.index import index_files, open_index
from dataprep.dataset.manifest import MANIFEST, built_as, digest_faults, no_dataset, read_manifest
from dataprep.dataset.records import NO_LABEL, Manifest, SplitManifest
from dataprep.dataset.replicas import REPLICAS
from dataprep.errors import FormatError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.base import DatasetInfo
from dataprep.formats.imagefolder import image_file, image_suffix, numbering_fault, repeat_links
from dataprep.formats.tfds import OWN_NAMES, TfdsNames
from dataprep.messages import quoted
from dataprep.sources import BUILT, base, recorded_class
from dataprep.storage import Storage


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
    """Return coco with the annotations that its manifest names; other datasets unchanged.

    Raises:
        FormatError, UsageError: They are not kinds of annotations.
    """
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
        for number, shard in enumerate(split.shards):
            due = recipe.shard_file(manifest, split, number)
            if shard["file"] != due:
                yield f"split {split.name}: shard {number} is {quoted(shard['file'])}, expected {due}"
    try:
        known = recipe.metadata_files(manifest).keys() | recipe.sidecar_files(manifest)
    except FormatError as error:
        yield str(error)
        return
    for name in sorted({entry["file"] for entry in manifest.files} - known):
        yield f"files: {quoted(name)} is not a file that a build writes"
    yield from recipe.layout_faults(manifest)


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
    shard_format = FORMATS[manifest.format]
    yield from (MANIFEST, REPLICAS)
    yield from (entry["file"] for entry in manifest.files)
    for split in manifest.splits:
        yield from (entry["file"] for entry in (*index_files(split), split.events))
        for shard in split.shards:
            yield from shard_format.stored_files(shard["file"])
        if not shard_format.one_file_per_image:
            continue
        try:
            yield from _indexed_names(storage, manifest, split)
        except (FormatError, FileNotFoundError) as error:
            raise UsageError(
                f"{error}. `overwrite` removes the images that the index lists, and cannot find them here: remove "
                f"{storage.url} yourself, or choose another `output`"
            ) from error


def _indexed_names(storage: Storage, manifest: Manifest, split: SplitManifest) -> Iterator[str]:
    folders: set[str] = set()
    for name, _ in indexed_images(storage, manifest, split):
        folders.add(name.split("/")[1])
        yield name
    if links_repeats(manifest, split):
        yield from (link for link, _ in repeat_links(sorted(folders), split.repeats["count"], split=split.name))


def indexed_images(storage: Storage, manifest: Manifest, split: SplitManifest) -> Iterator[tuple[str, int]]:
    """Yield name and size in bytes of each file in a split of an image folder, from its index.

    Raises:
        FormatError, FileNotFoundError: The index cannot be read.
    """
    root, suffix = image_root(manifest, split), image_suffix(built_as(manifest))
    for batch in open_index(storage, split).batches(["key", "label", "image_bytes"]):
        for key, label, num_bytes in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            class_name = "" if label == NO_LABEL else manifest.classes[label]
            yield image_file(root, key, class_name, suffix), num_bytes


def metadata_of(
    format_name: str,
    dataset: base.Dataset,
    classes: tuple[str, ...],
    splits: Sequence[SplitManifest],
    features: Features = NO_FEATURES,
    names: TfdsNames = OWN_NAMES,
) -> dict[str, bytes]:
    """Return the format's own metadata files, name to content, sorted by name. Raises FormatError if a class name
    cannot be written to such files."""
    samples = {split.name: tuple(shard["samples"] for shard in split.shards) for split in splits}
    num_bytes = {split.name: split.num_bytes for split in splits}
    info = described(dataset, classes, samples, num_bytes, features, names)
    return dict(sorted(FORMATS[format_name].metadata_files(info).items()))


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
