"""`dataprep convert`: makes a new dataset from a finished one: another format, smaller images or other shards."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from dataprep.arguments import LABELS, READ, WRITE, Pairs, Place, Texts, command_of, function_of, option, request, texts
from dataprep.builder.archives import ConversionRequest
from dataprep.builder.driver import refuse_nested
from dataprep.builder.finished import readable_manifest
from dataprep.cloud.placement import guard
from dataprep.commands.build import ImageBuild
from dataprep.commands.build_run import Job, dataset_of, run_and_print
from dataprep.dataset.adopted import adopted_fields, check_named, is_adopted, links_of, open_data
from dataprep.dataset.column_files import read_column
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.records import Manifest
from dataprep.dataset.views import address, read_view
from dataprep.errors import UsageError
from dataprep.formats import FORMATS
from dataprep.messages import shell_words
from dataprep.sources import own_name_fault
from dataprep.sources.base import CONVERTED, UNSTATED, Conversion, OwnData, name_from
from dataprep.sources.existing import Existing, check_val_fraction, feature_of, split_facts
from dataprep.storage import Storage, open_storage

EPILOG = """\b
Examples:
  dataprep convert imagenet --output imagenet-256 --format webdataset --resize 256
  dataprep convert gs://bucket/coco --output gs://bucket/coco-tfrecord --format tfrecord --near europe-west4-a
  dataprep adopt cc12m && dataprep convert cc12m --output shards --format webdataset --val-fraction 0.01
  dataprep convert shards --output folder --format imagefolder --split val --no-shuffle

\b
URL is a dataset made by dataprep build or convert, or the index written by dataprep adopt. Adopt other data first, or
build it with dataprep build folder.

\b
After an interruption, a crash or a full disk, run the same command again. It converts only what is missing, and the
result has the same bytes.
"""


@request
class Convert(ImageBuild):
    """Make a new dataset from the dataset at URL: in a different format, with smaller images, or in different shards.

    Keys, labels, splits, repeats, named classes and declared features stay the same. Images that need no change keep
    their bytes, and are compared with their checksums if the index has them. Images of adopted data are checked like
    original files.
    """

    url: Place = option(
        "Folder or gs:// prefix of the dataset, or of the index of adopted data, or URL@NAME for a view.",
        metavar="URL",
        kw_only=False,
        group=READ,
    )
    name: str | None = option("Name of the new dataset.", default=None, shown="the old dataset's name", group=WRITE)
    shuffle: bool = option(
        "Shuffle the samples with `seed`, or keep the order of the old shards.", default=True, either=True, group=WRITE
    )
    field: Texts = option(
        "Keep only this field of the samples as a feature, e.g. caption; may be repeated. Features that the dataset "
        "declares are always kept.",
        default=(),
        metavar="NAME",
        shown="all fields that every sample has",
        group=READ,
    )
    column: Texts = option(
        "Column of the dataset to store as a feature; may be repeated.", default=(), metavar="NAME", group=READ
    )
    no_fields: bool = option("Keep no fields.", default=False, group=READ)
    default: Pairs = option(
        "Value for samples without this field; may be repeated.", default_factory=dict, metavar="NAME=VALUE", group=READ
    )
    repeat: Literal["virtual", "physical"] = option(
        "For a dataset with several passes per epoch: store each image once, or all passes.",
        default="virtual",
        group=WRITE,
        rare=True,
    )
    val_fraction: float = option(
        "Fraction of train to move to val. The choice depends only on a sample's key and `seed`, so adding samples "
        "does not move existing ones.",
        default=0.0,
        low=0,
        high=1,
        group=LABELS,
    )

    def job(self) -> Job:
        url, name = address(str(self.url))
        index = open_storage(url)
        guard(index.url, self.region_policy)
        manifest = _manifest(index)
        view = read_view(index, manifest, name) if name else None
        manifest = manifest if view is None else view.of(manifest)
        named = check_named(index, manifest)
        data = open_data(index, manifest, named=named)
        existing = Existing(manifest, index, data)
        check_val_fraction(existing, texts(self.split), self.val_fraction)
        own = _described(manifest, self.name, self.val_fraction, self.seed)
        facts = split_facts(existing, texts(self.split), own)
        if self.repeat == "physical" and all(each.repeats == 1 for each in facts.values()):
            raise UsageError(
                f"`repeat` physical: {index.url} {'+'.join(facts)} uses each image once per epoch, so there is "
                "nothing to repeat; leave out `repeat`"
            )
        defaults = tuple(sorted(self.default.items()))
        kept = _kept(manifest, texts(self.field), defaults, no_fields=self.no_fields)
        options = self.options(
            CONVERTED.name,
            tuple(facts),
            repeat=self.repeat,
            allow_partial=manifest.partial,
            own=own,
            converted=Conversion(
                plan_hash=manifest.plan_hash,
                revision=manifest.revision,
                was_shuffled=manifest.shuffled,
                shuffle=self.shuffle,
                fields=tuple(sorted(set(kept or ()))),
                defaults=defaults,
                all_fields=kept is None,
                view="" if view is None else view.sha256,
                columns=_columns(index, manifest, tuple(facts), texts(self.column)),
            ),
        )
        index_url = f"{index.url}@{name}" if name else index.url
        make = partial(ConversionRequest, index_url=index_url, links=links_of(manifest, named=named))
        job = self.image_job(options, data.url, make=make)
        for source_url in {index.url, data.url}:  # an output inside one of them, or around it, is refused
            refuse_nested(open_storage(job.request.output_url), replace(job.request, source_url=source_url))
        return job


convert = function_of(Convert, dataset_of, "convert")
command = command_of(Convert, run_and_print, "convert", epilog=EPILOG)


def _manifest(index: Storage) -> Manifest:
    """Read the manifest of the dataset to convert; if there is none, say how to make one."""
    if index.stat(MANIFEST) is None:
        raise UsageError(
            f"{index.url}: no dataset there (no {MANIFEST}); index what other tools wrote with "
            f'"dataprep adopt {shell_words(index.url)}", or build pictures with '
            f'"dataprep build folder --source {shell_words(index.url)}"'
        )
    return readable_manifest(index)


def _described(manifest: Manifest, name: str | None, val_fraction: float, seed: int) -> OwnData:
    """Return name, licence and origin of the new dataset."""
    if name is not None and (fault := own_name_fault(name)):
        raise UsageError(f"{fault}; choose another with `name`")
    found = manifest.name if not is_adopted(manifest) else name_from(manifest.name)
    return OwnData(
        name=name or found,
        licence=manifest.licence or UNSTATED,
        origin=manifest.origin or UNSTATED,
        val_fraction=val_fraction,
        split_seed=seed if val_fraction else 0,
    )


def _kept(
    manifest: Manifest, fields: tuple[str, ...], defaults: tuple[tuple[str, str], ...], *, no_fields: bool
) -> tuple[str, ...] | None:
    """Return the fields to keep; None for all."""
    if manifest.features and (fields or defaults or no_fields):
        known = ", ".join(sorted(manifest.features))
        raise UsageError(
            f"`field`, `no_fields` and `default` cannot be used with a dataset that has features ({known}); all "
            "features are kept. Remove these options"
        )
    if no_fields and fields:
        raise UsageError(f"`no_fields` with `field` {fields[0]}: give one of the two")
    if not (fields or no_fields) and _may_have_fields(manifest):
        return None
    unknown = sorted({column for column, _ in defaults} - set(fields))
    if unknown:
        raise UsageError(f"`default` {unknown[0]}: it is not one of the fields that are kept")
    return fields


def _columns(
    index: Storage, manifest: Manifest, splits: tuple[str, ...], names: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Return columns with their digests. Raises UsageError if one lacks values, or no format can store them."""
    found = {name: read_column(index, manifest, name) for name in sorted(set(names))}
    for name, column in found.items():
        feature_of(name, column.type)
        for split in column.ids.keys() & {*splits}:
            for number in column.lacking(split):
                column.shard(split, number)
    return tuple((name, column.sha256) for name, column in found.items())


def _may_have_fields(manifest: Manifest) -> bool:
    """Return whether samples have fields that are not features, as in adopted or downloaded data, but never in an image
    folder."""
    if manifest.features or FORMATS[manifest.format].one_file_per_image:
        return False
    if is_adopted(manifest):
        return "fields" not in manifest.options["adopted"] or bool(adopted_fields(manifest))
    return any(split.statuses for split in manifest.splits)
