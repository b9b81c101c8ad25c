"""`dataprep build`: original files to verified shards. A request for each kind of originals; they share most options.

    BuildDataset    imagenet, imagenet-21k, imagenet-fake, coco-dup5     published archives
    BuildCoco       coco                                                with annotations
    BuildFolder     folder                                              a user's own pictures
    BuildTable      table                                               a user's own table of images
    BuildCustom     module:NAME                                         a user's own dataset class
    build_laion.py  laion                                               a table of URLs

Each says with `job` what to build; `dataprep/commands/build_run.py` runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import click

from dataprep.arguments import (
    IMAGES,
    LABELS,
    MOST_SEED,
    READ,
    WRITE,
    Pairs,
    Place,
    Request,
    Texts,
    command_of,
    function_of,
    option,
    request,
    texts,
)
from dataprep.builder.images import ImagePolicy
from dataprep.builder.plan import DEFAULT_SHARD_BYTES, BuildOptions, BuildRequest, Plan
from dataprep.commands.build_run import Job, Run, dataset_of, run_and_print
from dataprep.commands.progress import BuildProgress
from dataprep.dataset.features import described_with_place
from dataprep.dataset.opened import Dataset as Opened
from dataprep.dataset.records import SplitManifest
from dataprep.errors import UsageError
from dataprep.formats import FORMATS
from dataprep.formats.tfds import OWN_NAMES, TfdsNames
from dataprep.messages import counted, did_you_mean, human_bytes, not_one_of
from dataprep.sources import BUILT, DATASETS, configured, own_name_fault
from dataprep.sources.base import SPLITS, UNSTATED, Dataset, OwnData, name_from
from dataprep.sources.keys import ARCHIVES, PACKED
from dataprep.storage import open_originals, open_storage
from dataprep.storage.hub import is_hub, pinned
from dataprep.storage.readonly import ReadOnlyStorage

RERUN = """\b
After an interruption, a crash or a full disk, run the same command again. It builds only what is missing, and the
result has the same bytes.
"""
NO_ANNOTATIONS = "none"
_ELSEWHERE = {"laion": "dataprep.commands.build_laion"}
"""Modules of datasets whose builds share no options about images; each is imported when it is needed."""


@request
class ImageBuild(Run):
    """Options that all builds of pictures share: how shards are cut, and how images are prepared."""

    format: Literal["imagefolder", "tfrecord", "webdataset"] = option("Format to write.", group=WRITE)
    split: Texts = option("Build only this split; may be repeated.", default=(), group=LABELS)
    shard_bytes: int | str = option(
        "Bytes of original images per shard.",
        default=DEFAULT_SHARD_BYTES,
        size=True,
        shown="256MiB; a split under 16GiB gets up to 64 shards of at least 1MiB",
        group=WRITE,
    )
    num_shards: int | None = option("Number of shards per split, instead of `shard_bytes`.", default=None, group=WRITE)
    seed: int = option("Seed for the order of the samples.", default=0, high=MOST_SEED, group=WRITE)
    tfds_name: str | None = option(
        "Name for tfds.load, such as imagenet2012, with the output in …/NAME/VERSION; records also get the feature "
        "file_name.",
        default=None,
        shown="the dataset's name",
        group=WRITE,
        rare=True,
    )
    tfds_version: str = option("TFDS version, such as 5.1.0.", default=OWN_NAMES.version, group=WRITE, rare=True)
    val_name: str = option(
        "Name of the val split in TFRecords, such as validation.", default=OWN_NAMES.val, group=WRITE, rare=True
    )
    resize: int | None = option(
        "Shrink larger images so that their shorter side has this length.", default=None, metavar="PIXELS", group=IMAGES
    )
    members: Pairs = option(
        "webdataset: suffix of the member that holds this feature, such as caption=txt or mask=mask.png, or json to "
        "keep it in the JSON; may be repeated.",
        default_factory=dict,
        metavar="NAME=SUFFIX",
        shown="txt for a text caption or text; the feature's name for bytes; otherwise json",
        group=WRITE,
        rare=True,
    )
    quality: int = option("JPEG quality of resized images; repaired images get 100.", default=95, group=IMAGES)
    jpeg: Literal["untouched", "restart"] = option(
        "restart: rewrite every JPEG with restart markers and the same pixels, so that loaders can decode a crop "
        "without reading the rest; progressive images become baseline.",
        default="untouched",
        group=IMAGES,
        rare=True,
    )
    check: Literal["decode", "header", "none"] = option(
        "How to check every image: decode it, read its header, or look at its first three bytes.",
        default="decode",
        group=IMAGES,
        rare=True,
    )
    on_bad: Literal["repair", "reject", "fail"] = option(
        "What to do with PNG, CMYK and similar images. Truncated and undecodable images are always rejected.",
        default="repair",
        group=IMAGES,
        rare=True,
    )
    apply_exif: bool = option(
        "Rotate images upright if their EXIF orientation is not 1, and re-encode them.",
        default=False,
        group=IMAGES,
        rare=True,
    )
    max_reject_ratio: float | None = option(
        "Maximum share of images that may be rejected.", default=None, low=0, high=1, shown="0", group=IMAGES
    )

    def options(self, dataset: str, splits: tuple[str, ...], **more: Any) -> BuildOptions:
        """Return the options that change the dataset's bytes; `more` are those that only some kinds have."""
        return BuildOptions(
            dataset=dataset,
            format=self.format,
            splits=splits,
            seed=self.seed,
            shard_bytes=int(self.shard_bytes),
            num_shards=self.num_shards,
            images=ImagePolicy(
                check=self.check,
                on_bad=self.on_bad,
                apply_exif=self.apply_exif,
                short_side=self.resize,
                quality=self.quality,
                jpeg=self.jpeg,
            ),
            tfds=TfdsNames(name=self.tfds_name, version=self.tfds_version, val=self.val_name),
            members=tuple(sorted(self.members.items())),
            **more,
        )

    def image_job(
        self,
        options: BuildOptions,
        source_url: str,
        *,
        default_ratio: float = 0.0,
        make: Callable[..., BuildRequest] = BuildRequest,
        compare: bool = False,
    ) -> Job:
        """Return the build of these options.

        Args:
            options: Options that change the dataset's bytes.
            default_ratio: Share of rejected images that is allowed by default.
            make: Function that makes the request; its other arguments are bound.
            compare: Compare the archives with their published sizes and digests first.
        """
        ratio = default_ratio if self.max_reject_ratio is None else self.max_reject_ratio
        append = isinstance(self, Growing) and self.append
        if append and self.overwrite:
            raise UsageError("`append` keeps the dataset, `overwrite` deletes it; give one of the two")
        asked = make(
            options=options,
            source_url=source_url,
            output_url=str(self.output),
            max_reject_ratio=ratio,
            overwrite=self.overwrite,
            append=append,
        )
        return Job(
            run=self,
            request=asked,
            plan_lines=plan_lines,
            split_line=split_line,
            check=partial(_check_source, asked) if compare else lambda _progress: None,
            warnings=tuple(_unfit(asked)),
        )


@request
class Growing(Request):
    """Options of builds that can add to a finished dataset."""

    append: bool = option(
        "Add samples that are new in the source to the dataset at `output`, as new shards. Existing samples are "
        "compared but not changed; all options must match the dataset's.",
        default=False,
        group=WRITE,
    )


@request
class PublishedBuild(ImageBuild, Growing):
    """Options of datasets whose archives have published counts and digests."""

    allow_partial: bool = option(
        "Accept counts that differ from the published counts, and record that.", default=False, group=READ
    )
    check_source: bool = option(
        "First compare the archives' sizes and MD5s with the published values.", default=False, group=READ
    )


@request
class BuildDataset(PublishedBuild):
    """Build a published dataset from its original files.

    Images are read as byte ranges of the archives, which are not unpacked.

    A valid RGB or grey JPEG keeps its bytes. Other images are re-encoded; images that cannot be decoded are rejected
    and listed.
    """

    dataset: str = option("Name of the dataset, such as imagenet or coco-dup5.", kw_only=False, group=READ)
    source: Place | None = option(
        "Folder or prefix (gs://, s3://, az://, https://, hf://) that holds the original files.",
        default=None,
        metavar="URL",
        group=READ,
    )
    images: int | None = option(
        "imagenet-fake: number of images in train.", default=None, shown="10,000", group=READ, rare=True
    )
    repeat: Literal["virtual", "physical"] = option(
        "coco-dup5: virtual stores each image once, and loaders make five passes per epoch; physical stores all five.",
        default="virtual",
        group=WRITE,
        rare=True,
    )

    def job(self) -> Job:
        facts = configured(self.dataset, fake_images=self.images)
        splits = texts(self.split) or facts.default_splits
        for split in splits:
            if split not in facts.splits:
                raise UsageError(f"{self.dataset} has no split {split!r}; it has {', '.join(facts.splits)}")
        if self.repeat == "physical" and all(facts.repeats(split) == 1 for split in splits):
            raise UsageError(
                f"`repeat` physical: {self.dataset} {'+'.join(splits)} uses each image once per epoch, so there is "
                "nothing to repeat; leave out `repeat`"
            )
        options = self.options(
            self.dataset,
            splits,
            repeat=self.repeat,
            allow_partial=self.allow_partial,
            fake_images=self.images or _default_images(facts),
        )
        source = _source(facts, None if self.source is None else str(self.source), write=not self.dry_run)
        return self.image_job(options, source, default_ratio=facts.default_max_reject_ratio, compare=self.check_source)


@request
class BuildCoco(PublishedBuild):
    """Build COCO 2017: images with captions, objects, person keypoints and panoptic segments.

    Images are read as byte ranges of the archives, which are not unpacked. A valid RGB or grey JPEG keeps its bytes.
    Annotations keep their values: boxes are [x, y, width, height] in pixels, and segmentations are the JSON of their
    polygons or run-length encodings.
    """

    source: Place = option(
        "Folder or prefix (gs://, s3://, az://, https://, hf://) that holds the original files.",
        metavar="URL",
        group=READ,
    )
    annotations: Texts = option(
        "Use only these annotations; may be repeated.",
        default=(),
        choices=("captions", "instances", "keypoints", "panoptic", NO_ANNOTATIONS),
        shown="all that the source has",
        group=READ,
    )

    def job(self) -> Job:
        from dataprep.sources.coco import COCO

        splits = texts(self.split) or COCO.default_splits
        for split in splits:
            if split not in COCO.splits:
                raise UsageError(not_one_of("`split`", split, COCO.splits))
        annotations = self._annotations(splits)
        if self.apply_exif and annotations:
            raise UsageError("`apply_exif` turns images but not their boxes; leave it out, or say `annotations` none")
        options = self.options(COCO.name, splits, annotations=annotations, allow_partial=self.allow_partial)
        return self.image_job(
            options, str(self.source), default_ratio=COCO.default_max_reject_ratio, compare=self.check_source
        )

    def _annotations(self, splits: tuple[str, ...]) -> tuple[str, ...]:
        """Return the kinds of annotations to take; by default those whose files are there."""
        from dataprep.sources.coco import found_kinds

        kinds = texts(self.annotations)
        if NO_ANNOTATIONS in kinds:
            if len(kinds) > 1:
                raise UsageError("`annotations` none excludes other kinds; leave one of them out")
            return ()
        return tuple(sorted(set(kinds))) or found_kinds(open_originals(str(self.source)), splits)


@request
class OwnBuild(ImageBuild, Growing):
    """Options about a user's own data."""

    name: str | None = option(
        "Name of the dataset.",
        default=None,
        shown="from the last part of --source, or its folder if that is a table",
        group=WRITE,
    )
    licence: str = option("Licence of the pictures, for the manifest.", default=UNSTATED, group=WRITE)
    origin: str = option("Origin of the pictures, for the manifest.", default=UNSTATED, group=WRITE)
    join_classes: bool = option(
        "Merge classes whose names differ only in case or Unicode form, such as Cat and cat.",
        default=False,
        group=LABELS,
    )
    val_fraction: float = option(
        "Fraction of train to move to val. The choice depends only on a picture's key (with `group_by`, its group) and "
        "`seed`, so adding pictures does not move existing ones.",
        default=0.0,
        low=0,
        high=1,
        open_high=True,
        group=LABELS,
    )
    group_by: str | None = option(
        "With `val_fraction`, keep pictures with the same value in this column together.",
        default=None,
        metavar="COLUMN",
        group=LABELS,
    )
    default: Pairs = option(
        "Value for pictures without a value in this column; may be repeated.",
        default_factory=dict,
        metavar="COLUMN=VALUE",
        group=READ,
    )
    drop: Texts = option("Leave this column out; may be repeated.", default=(), metavar="COLUMN", group=READ)

    def own_job(self, kind: str, root: str, only: str, **own: Any) -> Job:
        """Return the build of a user's own data, of the kind `folder` or `table`; `only` is the only file or folder to
        read below the root, or empty, and `own` are fields of OwnData that this kind has."""
        splits = texts(self.split)
        for split in splits:
            if split not in SPLITS:
                raise UsageError(f"`split` {split}: expected one of {', '.join(SPLITS)}")
        name, licence, origin = self.name, self.licence, self.origin
        if is_hub(root):
            source = pinned(root)
            root, name = source.url, name or name_from(source.name)
            origin = source.origin if origin == UNSTATED else origin
            licence = source.licence if licence == UNSTATED and source.licence else licence
        place = open_storage(root).url
        is_archive = only.lower().rpartition(".")[2] in ARCHIVES
        name = name or name_from(f"{place}/{only}" if is_archive else place)
        if fault := own_name_fault(name):
            raise UsageError(f"{fault}; choose another with `name`")
        data = OwnData(
            name=name,
            licence=licence,
            origin=origin,
            archive=only,
            val_fraction=self.val_fraction,
            split_seed=self.seed if self.val_fraction else 0,
            group_by=self.group_by,
            defaults=tuple(sorted(self.default.items())),
            drop=tuple(sorted(texts(self.drop))),
            join_classes=self.join_classes,
            **own,
        )
        return self.image_job(self.options(kind, splits, own=data), root)


@request
class BuildFolder(OwnBuild):
    """Build a dataset from your own pictures: any folder tree, or an uncompressed zip or tar of one.

    Nothing is unpacked or renamed. A valid RGB or grey JPEG keeps its bytes. Other pictures (PNG, WebP, GIF, BMP) are
    re-encoded as JPEG; pictures that cannot be decoded are rejected and listed.
    """

    source: Place = option(
        "Folder, prefix (gs://, s3://, az://, https://) or hf://datasets/OWNER/NAME[@REVISION][/PATH] that holds the "
        "pictures, or one .zip or .tar.",
        metavar="URL",
        group=READ,
    )
    label_from: str | None = option(
        "Source of the class: the picture's folder, a metadata column, or none.",
        default=None,
        metavar="folder|COLUMN|none",
        shown="the column label; otherwise the folders, if there are at least two and every picture is in one",
        group=LABELS,
    )
    text_files: Texts = option(
        "Store each picture's text file (cat.txt for cat.jpg) as the feature NAME, e.g. caption. SUFFIX is the files' "
        "suffix if it is not txt. May be repeated.",
        default=(),
        metavar="NAME[=SUFFIX]",
        group=READ,
    )
    exclude: Texts = option(
        "Leave out files with this suffix (heic) or name (notes.txt, 'draft-*.png'); may be repeated.",
        default=(),
        metavar="SUFFIX|NAME",
        group=READ,
    )

    def job(self) -> Job:
        from dataprep.sources.folder import text_files

        root, only = place_of(str(self.source), lambda url: url.lower().rpartition(".")[2] in ARCHIVES | PACKED)
        stored = text_files(texts(self.text_files))
        return self.own_job(
            "folder",
            root,
            only,
            label_from=self.label_from,
            text_files=stored,
            pass_over=_excluded(texts(self.exclude), stored),
        )


@request
class BuildTable(OwnBuild):
    """Build a dataset from your own tables: image bytes in parquet files, or image paths in any table.

    A valid RGB or grey JPEG keeps its bytes. Other images (PNG, WebP, GIF, BMP) are re-encoded as JPEG. Images that
    cannot be decoded are rejected and listed; with `max_reject_ratio`, so are images that do not exist or have an
    unsupported type, such as TIFF.
    """

    source: Place = option(
        "A table, or the folder, prefix (gs://, s3://, az://, https://) or "
        "hf://datasets/OWNER/NAME[@REVISION][/PATH] that holds tables and images.",
        metavar="URL",
        group=READ,
    )
    table: str | None = option(
        "Table, or folder of tables, in `source`.", default=None, metavar="PATH", shown="all", group=READ
    )
    image_column: str | None = option(
        "Column with the images.",
        default=None,
        metavar="COLUMN",
        shown="the only column that can hold images",
        group=READ,
    )
    key_from: str | None = option(
        "Source of the keys: image paths, table names with row numbers, or a column.",
        default=None,
        metavar="path|row|COLUMN",
        shown="path if the first image has a path, otherwise row",
        group=READ,
    )
    label_from: str | None = option(
        "Column with the classes.",
        default=None,
        metavar="COLUMN|none",
        shown="label, or the only column of type ClassLabel",
        group=LABELS,
    )

    def job(self) -> Job:
        from dataprep.sources.tables import is_table

        root, name = place_of(str(self.source), lambda url: is_table(url) or Path(url).is_file())
        if name and self.table:
            raise UsageError(
                f"`table` {self.table}: `source` is a table itself; give the folder that holds both as `source`"
            )
        return self.own_job(
            "table",
            root,
            (self.table or name).strip("/"),
            label_from=self.label_from,
            image_column=self.image_column,
            key_from=self.key_from,
        )


@request
class BuildCustom(ImageBuild, Growing):
    """Build with your own dataset class.

    The class says where each image is; dataprep checks, shuffles, packs and verifies the images.

    A valid RGB or grey JPEG keeps its bytes. Other images are re-encoded; images that cannot be decoded are rejected
    and listed.
    """

    dataset: Any = option(
        "A class, its name `module:NAME`, or the name of an installed class.", kw_only=False, group=READ
    )
    source: Place = option(
        "Folder or prefix (gs://, s3://, az://, https://, hf://) that the class lists.", metavar="URL", group=READ
    )
    name: str | None = option("Name of the dataset.", default=None, shown="the class's name", group=WRITE)
    licence: str | None = option(
        "Licence of the images, for the manifest.", default=None, shown="the class's licence", group=WRITE
    )
    origin: str | None = option(
        "Origin of the images, for the manifest.", default=None, shown="the class's origin", group=WRITE
    )
    repeat: Literal["virtual", "physical"] = option(
        "For a dataset class with several passes per epoch: store each image once, or all passes.",
        default="virtual",
        group=WRITE,
        rare=True,
    )
    allow_partial: bool = option(
        "Build even if the number of images differs from what the dataset class states.", default=False, group=READ
    )

    def job(self) -> Job:
        from dataprep.sources.custom import custom_dataset

        dataset = custom_dataset(self.dataset)
        for split in texts(self.split):
            dataset.split_facts(split)
        own = OwnData(
            name=dataset.name if self.name is None else self.name,
            licence=dataset.licence if self.licence is None else self.licence,
            origin=dataset.origin if self.origin is None else self.origin,
        )
        if fault := own_name_fault(own.name):
            raise UsageError(f"{fault}; choose another with `name`")
        options = self.options(
            dataset.place,
            texts(self.split) or tuple(dataset.facts),
            own=own,
            repeat=self.repeat,
            allow_partial=self.allow_partial,
        )
        return self.image_job(options, str(self.source))


def place_of(source: str, is_file: Callable[[str], bool]) -> tuple[str, str]:
    """Return the root of the originals, and the name of the file if the source is a single one.

    Args:
        source: The user's URL.
        is_file: Returns whether a name is a file's that may be a source.
    """
    url = open_storage(source).url.rstrip("/")
    if not is_file(url) or ("://" not in url and Path(url).is_dir()):
        return source, ""
    root, _, name = url.rpartition("/")
    return root or "/", name


def _excluded(values: Iterable[str], text_files: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the files to leave out as `OwnData.pass_over` has them: suffixes, and patterns of names.

    Raises:
        UsageError: A value names a folder, or leaves out all files that `text_files` asks for.
    """
    found = {value.lower() for value in values}
    found = {value.lstrip(".") if value.rfind(".") <= 0 else value for value in found}
    for value in sorted(found):
        if "/" in value or not value:
            raise UsageError(f"`exclude` {value}: expected a suffix or the name of a file, such as heic or notes.txt")
        for name, suffix in text_files:
            if value in (suffix, f"*.{suffix}"):
                raise UsageError(
                    f"`exclude` {value} leaves out the files that `text_files` {name} stores; leave one of the two "
                    "out, or name single files, such as `exclude` notes.txt"
                )
    return tuple(sorted(found))


def _default_images(dataset: Dataset) -> int | None:
    if not dataset.generated:
        return None
    from dataprep.sources.imagenet import DEFAULT_IMAGES

    return DEFAULT_IMAGES


def _source(dataset: Dataset, source: str | None, *, write: bool) -> str:
    """Return the URL of the originals; with `write`, generated originals are written there first."""
    if not dataset.generated:
        if source is None:
            raise UsageError(f"{dataset.name} needs `source`, the folder or prefix of its original files")
        return pinned(source).url if is_hub(source) else source
    from dataprep.sources.imagenet import FakeImageNet

    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "dataprep", dataset.name)
    place = open_storage(source or str(default))
    if not place.is_local:
        raise UsageError(f"`source` {source}: {dataset.name} generates its originals on a disk; expected a folder")
    directory = Path(place.url)
    if write and isinstance(dataset, FakeImageNet):
        dataset.write_originals(directory)
    return str(directory)


def _unfit(asked: BuildRequest) -> Iterator[str]:
    """Yield a warning of an image folder in a bucket. Raises UsageError for links in one, and for an output that is
    only read."""
    output = open_storage(asked.output_url)
    if isinstance(output, ReadOnlyStorage):
        raise UsageError(
            f"`output` {asked.output_url}: dataprep only reads from there; choose a folder or gs://bucket/prefix"
        )
    in_bucket = not output.is_local
    if FORMATS[asked.options.format].one_file_per_image and in_bucket:
        if asked.options.repeat == "physical":
            raise UsageError("`repeat` physical: a bucket has no links; use `repeat` virtual or a shard format")
        yield (
            "an image folder in a bucket has one object per image, so each read of 110 kB costs a request and 50 ms; "
            "prefer the format webdataset or tfrecord"
        )

    names, place = asked.options.tfds, asked.output_url.rstrip("/")
    if names.name and not f"/{place}".endswith(f"/{names.name}/{names.version}"):
        yield f'tfds.load("{names.name}") looks below {names.name}/{names.version}, but `output` is {place}'


def _check_source(asked: BuildRequest, progress: BuildProgress) -> None:
    """Compare the archives with their published sizes and digests. Raises SourceError if one differs."""
    source = open_originals(asked.source_url)
    dataset = DATASETS[asked.options.dataset]
    for split in asked.options.splits:
        for line in dataset.check_source(source, split, progress.reading):
            progress.log(line)


def plan_lines(plan: Plan) -> Iterator[str]:
    """Describe the splits of a plan."""
    before = "" if plan.options.images.short_side is None else " before --resize"
    for split in plan.splits:
        passes = FORMATS[plan.options.format].passes_written(split.repeat_stored)
        count, stored = split.repeat_count, split.repeat_stored
        yield (
            f"  {split.name}: {counted(sum(split.shard_samples), 'sample')} in "
            f"{counted(len(split.shard_samples), 'shard')}, about {human_bytes(split.source_bytes * passes)}{before}"
            + (f"; {count} passes per epoch, {stored} stored" if count > 1 else "")
        )
    if not plan.classes:
        yield "  labels: none"
    if plan.features:
        features = (f"{name} ({described_with_place(feature)})" for name, feature in plan.features.items())
        yield f"  features: {', '.join(features)}"


def split_line(split: SplitManifest) -> str:
    """Describe a finished split."""
    repaired, rejected = sum(split.repaired.values()), sum(split.rejected.values())
    return (
        f"{split.name}: {counted(split.samples, 'sample')}, {counted(len(split.shards), 'shard')}, "
        f"{human_bytes(split.num_bytes)}, "
        f"{repaired} repaired{_reasons(split.repaired)}, {rejected} rejected{_reasons(split.rejected)}"
    )


def _reasons(counts: dict[str, int]) -> str:
    return f" ({', '.join(f'{count} {reason}' for reason, count in counts.items())})" if counts else ""


# The Python functions


build_folder = function_of(BuildFolder, dataset_of, "build_folder")
build_table = function_of(BuildTable, dataset_of, "build_table")
build_coco = function_of(BuildCoco, dataset_of, "build_coco")
build_dataset = function_of(BuildDataset, dataset_of, "build_dataset")
build_custom = function_of(BuildCustom, dataset_of, "build_custom")


def build(dataset: str | type, /, **options: Any) -> Opened:
    """Build a dataset by its name, or with your own dataset class, as `dataprep build` does.

    `build("folder", …)` is `build_folder(…)`; `build_table`, `build_coco`, `build_laion`, `build_dataset` (imagenet,
    imagenet-21k, imagenet-fake, coco-dup5) and `build_custom` (a class) are the others. They list and check their
    arguments, also for a type checker.

    Args:
        dataset: `folder`, `table`, `laion`, the name of a published dataset, `module:NAME` or a class.
        options: Arguments of the function of that dataset.
    """
    if not isinstance(dataset, str):
        return build_custom(dataset, **options)
    if dataset in _ELSEWHERE:
        module = import_module(_ELSEWHERE[dataset])
        opened: Opened = getattr(module, f"build_{dataset}")(**options)
        return opened
    if dataset in _OF_THEIR_OWN:
        return _OF_THEIR_OWN[dataset][1](**options)
    if dataset in DATASETS:
        return build_dataset(dataset, **options)
    if _is_custom(dataset):
        return build_custom(dataset, **options)
    raise UsageError(_unknown(dataset))


# The command


EPILOG = """\b
Examples:
  dataprep build coco --source coco --output shards --format webdataset
  dataprep build coco-dup5 --source coco --output gs://bucket/coco-dup5 --format tfrecord --near europe-west4-a
  dataprep build imagenet --source originals --output imagenet --format webdataset --resize 256 --quality 90
  dataprep build imagenet --source originals --output imagenet --format imagefolder --split val
  dataprep build coco-dup5 --source coco --output out --format webdataset --dry-run
  dataprep build imagenet-21k --source winter21_whole --output gs://b/imagenet-21k --format webdataset
  dataprep build imagenet-fake --images 2000 --output fake --format tfrecord
  dataprep build folder --source ~/Pictures --output shards --format webdataset
  dataprep build table --source hf://datasets/OWNER/NAME --output shards --format webdataset
  dataprep build imagenet --source gs://b/originals --output gs://b/imagenet --format tfrecord \\
      --runner DataflowRunner -- --project=P --region=us-central1 --temp_location=gs://b/tmp \\
      --sdk_container_image=IMAGE

\b
After an interruption, a crash or a full disk, run the same command again. It builds only what is missing. The same
originals give the same bytes.
"""
COCO_EPILOG = f"""\b
Examples:
  dataprep build coco --source originals --output coco --format webdataset
  dataprep build coco --source gs://bucket/originals --output gs://bucket/coco --format tfrecord --check-source
  dataprep build coco --source originals --output captions --format webdataset --annotations captions --split val
  dataprep build coco --source originals --output people --format tfrecord --annotations keypoints
  dataprep build coco --source originals --output images --format imagefolder --annotations none --split test

\b
The source contains train2017.zip and val2017.zip (or the unpacked folders), and annotations_trainval2017.zip and
panoptic_annotations_trainval2017.zip (or their files, unpacked in annotations/).

\b
Loaders read the annotations with fields=("captions", "objects", "person_keypoints", "panoptic_objects"), and
loaders.transform_boxes applies a crop to boxes. Boxes are in pixels of the original files, even with --resize;
original_height and original_width give that size.

{RERUN}"""
FOLDER_EPILOG = f"""\b
Examples:
  dataprep build folder --source ~/Pictures --output shards --format webdataset
  dataprep build folder --source pets --output gs://bucket/pets --format tfrecord --val-fraction 0.1 --resize 256
  dataprep build folder --source pets.zip --output shards --format webdataset --name pets --licence CC-BY-4.0
  dataprep build folder --source pairs --output shards --format webdataset --text-files caption
  dataprep build folder --source scans --output shards --format webdataset --label-from diagnosis \\
      --val-fraction 0.2 --group-by patient --default age=-1 --drop notes

\b
The top-level folders train, val (or valid, validation) and test are the splits; without them, everything is train. The
folders directly below are the classes, if there are at least two and they contain all pictures.

\b
A metadata.csv, metadata.jsonl or metadata.parquet in any folder has a row for each picture: file_name, its path
relative to that folder, and any other columns. Shards store these columns, and loaders read them with
fields=("caption",). A column named label is the class.


With --text-files caption, the text in cat.txt is the caption of cat.jpg. Every picture needs such a file, or --default.

{RERUN}"""
TABLE_EPILOG = f"""\b
Examples:
  dataprep build table --source food101 --output shards --format webdataset
  dataprep build table --source hf://datasets/OWNER/NAME --output gs://bucket/name --format tfrecord --resize 256
  dataprep build table --source pets/labels.csv --output shards --format webdataset --label-from breed \\
      --val-fraction 0.1
  dataprep build table --source gs://bucket --table lists/train.parquet --output gs://bucket/pets --format tfrecord

\b
Tables are parquet files with a column of image bytes, as on the Hugging Face Hub, or parquet, CSV, TSV or JSON Lines
files with image paths. A path is relative to the table or to --source, or begins with --source; other paths are
refused. The table names give the splits: data/train-00000-of-00012.parquet, validation.csv, test/0.parquet.

\b
The classes are in the column label, or in the only column of type ClassLabel. All other columns become features: shards
store them, and loaders read them with fields=("caption",).

\b
Image bytes are first unpacked below OUTPUT/_build, which takes as much space as the images; --dry-run shows how much.

{RERUN}"""
CUSTOM_EPILOG = """\b
Examples:
  dataprep build my_pets:Pets --source ~/pets --output shards --format webdataset
  dataprep build pets --source gs://bucket/pets --output gs://bucket/shards --format tfrecord --resize 256

\b
docs/own-dataset.md has a complete class.
"""


_OF_THEIR_OWN: dict[str, tuple[type[ImageBuild], Callable[..., Opened], str]] = {
    "coco": (BuildCoco, build_coco, COCO_EPILOG),
    "folder": (BuildFolder, build_folder, FOLDER_EPILOG),
    "table": (BuildTable, build_table, TABLE_EPILOG),
}
"""Request, function and examples of the datasets that have options of their own."""


def command_named(name: str) -> click.Command:
    """Return the command that builds with a user's own class, `module:NAME`."""
    opening = f"Build with your own dataset class {name}."
    return command_of(BuildCustom, run_and_print, name, epilog=CUSTOM_EPILOG, opening=opening, dataset=name)


def _is_custom(name: str) -> bool:
    from dataprep.sources.custom import is_custom

    return is_custom(name)


def _unknown(name: str) -> str:
    from dataprep.sources.custom import installed_classes

    known = [*BUILT, *installed_classes()]
    hint = did_you_mean(name, known)
    return f"{name!r} is not one of {', '.join(known)}, and not the module:NAME of your own class{hint}"


class _Datasets(click.Group):
    """A group with a command for each dataset."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(BUILT)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a dataset; a user's own class is imported when its command is called."""
        if cmd_name in _ELSEWHERE:
            found: click.Command = import_module(_ELSEWHERE[cmd_name]).command
            return found
        if cmd_name in _OF_THEIR_OWN:
            kind, _, epilog = _OF_THEIR_OWN[cmd_name]
            return command_of(kind, run_and_print, cmd_name, epilog=epilog)
        if cmd_name in DATASETS:
            opening = f"Build {cmd_name} from its original files."
            return command_of(BuildDataset, run_and_print, cmd_name, epilog=EPILOG, opening=opening, dataset=cmd_name)
        return command_named(cmd_name) if _is_custom(cmd_name) else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in BUILT and not args[0].startswith("-") and not _is_custom(args[0]):
            ctx.fail(_unknown(args[0]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from dataprep.sources.custom import installed_classes

        with formatter.section("Datasets"):
            lines = {name: found.description.partition(". ")[0].rstrip(".") for name, found in BUILT.items()}
            lines |= {name: f"{found.value}, installed with a package" for name, found in installed_classes().items()}
            formatter.write_dl([*lines.items(), ("module:NAME", "your own dataset class; see docs/own-dataset.md")])


@click.group("build", cls=_Datasets, epilog=EPILOG, subcommand_metavar="DATASET [OPTIONS] [-- ENGINE_OPTIONS]")
def command() -> None:
    """Build a dataset from its original files: plan, shards, index, manifest.

    `dataprep build DATASET --help` lists the options for a dataset.
    """
