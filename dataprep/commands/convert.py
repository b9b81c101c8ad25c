"""`dataprep convert`: makes a new dataset of a finished one, in another format, with smaller images or other shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from dataprep.build.conversion import ConversionRequest
from dataprep.build.driver import refuse_nested
from dataprep.build.finished import readable_manifest
from dataprep.build.plan import BuildOptions
from dataprep.cloud.placement import guard
from dataprep.commands.build import build_images
from dataprep.commands.build_options import image_options, image_policy, pairs, shard_options
from dataprep.commands.build_run import Run, refuse_unknown_runner, shared_options
from dataprep.dataset.links import is_adopted, links_of, open_data
from dataprep.dataset.manifest import MANIFEST
from dataprep.dataset.records import Manifest
from dataprep.dataset.trust import check_named
from dataprep.errors import UsageError
from dataprep.sources import own_name_fault
from dataprep.sources.existing import Existing, split_facts
from dataprep.sources.own import CONVERTED, UNSTATED, Conversion, OwnData, name_from
from dataprep.storage import Storage, open_storage

EPILOG = """\b
Examples:
  dataprep convert imagenet --output imagenet-256 --format webdataset --resize 256
  dataprep convert gs://bucket/coco --output gs://bucket/coco-tfrecord --format tfrecord --beside europe-west4-a
  dataprep adopt cc12m && dataprep convert cc12m --output shards --format webdataset --field caption
  dataprep convert shards --output folder --format imagefolder --split val --no-shuffle

\b
URL is a dataset of dataprep build or convert, or the index of one of dataprep adopt. Other data are adopted first, or
built with dataprep build folder.

\b
After an interruption, a crash or a full disk run the same command again: it converts only what is missing, and the
result has the same bytes.
"""


@click.command("convert", epilog=EPILOG)
@click.argument("url")
@click.argument("engine_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE_OPTIONS]")
@click.option("--name", help="Name of the new dataset.  [default: that of the old one]")
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    show_default=True,
    help="Put the samples into the random order of --seed, or keep the order of the old shards.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME",
    help="Keep this field of the samples as a feature, e.g. caption; may be repeated. The features of a dataset that "
    "has some are always kept.",
)
@click.option(
    "--default",
    "defaults",
    multiple=True,
    metavar="NAME=VALUE",
    callback=pairs,
    help="Value for samples without this field; may be repeated.",
)
@click.option(
    "--repeat",
    type=click.Choice(["virtual", "physical"]),
    default="virtual",
    show_default=True,
    help="For a dataset of several passes in an epoch: store each image once, or all passes.",
)
@shard_options
@image_options
@shared_options
def command(
    url: str,
    engine_options: tuple[str, ...],
    run: Run,
    name: str | None,
    shuffle: bool,
    fields: tuple[str, ...],
    defaults: tuple[tuple[str, str], ...],
    output: str,
    format_name: str,
    splits: tuple[str, ...],
    overwrite: bool,
    max_reject_ratio: float | None,
    **options: Any,
) -> None:
    """Make a new dataset of the dataset at URL: in another format, with smaller images, or in other shards.

    Keys, labels, splits, repeats, named classes and declared features stay the same. Images that need no change keep
    their bytes, and each is compared with its checksum where the index has one. Images of adopted data are checked like
    original files.
    """
    refuse_unknown_runner(run, engine_options)
    index = open_storage(url)
    guard(index.url, run.region_policy)
    manifest = _manifest(index)
    named = check_named(index, manifest)
    data = open_data(index, manifest, named=named)
    facts = split_facts(Existing(manifest, index, data), splits)
    if options["repeat"] == "physical" and all(each.repeats == 1 for each in facts.values()):
        raise UsageError(f"--repeat physical: {index.url} {'+'.join(facts)} is not repeated; leave it out")
    request = ConversionRequest(
        options=BuildOptions(
            dataset=CONVERTED.name,
            format=format_name,
            splits=tuple(facts),
            images=image_policy(options),
            own=_described(manifest, name),
            converted=_conversion(manifest, shuffle, fields, defaults),
            **options,
        ),
        source_url=data.url,
        output_url=output,
        max_reject_ratio=max_reject_ratio or 0.0,
        overwrite=overwrite,
        index_url=index.url,
        links=links_of(manifest, named=named),
    )
    _refuse_inside(request, index)
    build_images(request, run, engine_options)


def _manifest(index: Storage) -> Manifest:
    """Read the manifest of the dataset to convert; if there is none, say how to make one."""
    if index.stat(MANIFEST) is None:
        raise UsageError(
            f"{index.url}: no dataset there (no {MANIFEST}); index what other tools wrote with "
            f'"dataprep adopt {index.url}", or build pictures with "dataprep build folder --source {index.url}"'
        )
    return readable_manifest(index)


def _described(manifest: Manifest, name: str | None) -> OwnData:
    """Return name, licence and origin of the new dataset."""
    if name is not None and (fault := own_name_fault(name)):
        raise UsageError(f"{fault}; choose another with --name")
    found = manifest.name if not is_adopted(manifest) else name_from(manifest.name)
    return OwnData(name=name or found, licence=manifest.licence or UNSTATED, origin=manifest.origin or UNSTATED)


def _conversion(
    manifest: Manifest, shuffle: bool, fields: tuple[str, ...], defaults: tuple[tuple[str, str], ...]
) -> Conversion:
    if manifest.features and (fields or defaults):
        known = ", ".join(sorted(manifest.features))
        raise UsageError(
            f"--field and --default: the dataset has features, which are all kept ({known}); leave them out"
        )
    unknown = sorted({column for column, _ in defaults} - set(fields))
    if unknown:
        raise UsageError(f"--default {unknown[0]}: it is none of the fields that --field keeps")
    return Conversion(
        plan_hash=manifest.plan_hash,
        revision=manifest.revision,
        was_shuffled=manifest.shuffled,
        shuffle=shuffle,
        fields=tuple(sorted(set(fields))),
        defaults=defaults,
    )


def _refuse_inside(request: ConversionRequest, index: Storage) -> None:
    """Refuse an output that lies in the index or the data of the dataset, or around them."""
    output = open_storage(request.output_url)
    for url in {index.url, request.source_url}:
        refuse_nested(output, replace(request, source_url=url))
