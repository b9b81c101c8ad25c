"""The recipe of datasets that are converted from finished ones, which were built here or adopted.

It is the recipe of archives, with another source: the shards of the finished dataset, whose index lists the images.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from dataprep.builder.archives import ArchiveRecipe
from dataprep.builder.finished import readable_manifest
from dataprep.builder.job import BuildJob
from dataprep.builder.keeping import Keeping
from dataprep.builder.open_build import OpenBuild
from dataprep.builder.order import OrderedSplit
from dataprep.builder.plan import Plan
from dataprep.builder.request import BuildRequest, Progress
from dataprep.dataset.adopted import LINKS
from dataprep.dataset.features import places_in_images
from dataprep.dataset.index import PublishingRows
from dataprep.dataset.records import Manifest
from dataprep.errors import UsageError
from dataprep.sources import Dataset
from dataprep.sources.base import CONVERTED, Conversion
from dataprep.sources.existing import Existing, ExistingDataset, split_facts
from dataprep.storage import Storage, open_storage

_NOT_CONVERTED = "a request to build original files, expected one to convert a dataset: use dataprep convert"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionRequest(BuildRequest):
    """What to convert; `source_url` is where the shards are."""

    index_url: str
    """Where manifest and index are: `source_url`, unless adopted data lie apart from them."""
    links: str
    """How links in the shards' place are followed: a name in `dataprep.dataset.adopted.LINKS`."""


class ConversionRecipe(ArchiveRecipe):
    """Builds a dataset from the images in the shards of another one; implements `dataprep.builder.recipe.Recipe`."""

    joins_unnamed_builds = False

    def _dataset(self, request: BuildRequest) -> Dataset:
        options, wanted = request.options, _conversion_of(request)
        existing = _existing_of(request)
        found = Conversion(
            plan_hash=existing.manifest.plan_hash,
            revision=existing.manifest.revision,
            was_shuffled=existing.manifest.shuffled,
            shuffle=wanted.shuffle,
            fields=wanted.fields,
            defaults=wanted.defaults,
            all_fields=wanted.all_fields,
        )
        if found != wanted:
            raise UsageError(f"{existing.index.url}: the dataset was replaced meanwhile; run the same command again")
        digests = {split.name: split.index["sha256"] for split in existing.manifest.splits}
        dataset = ExistingDataset(
            name=CONVERTED.name,
            description=CONVERTED.description,
            citation=CONVERTED.citation,
            licence=CONVERTED.licence,
            origin=CONVERTED.origin,
            facts=split_facts(existing, options.splits, options.own),
            default_splits=(),
            identity=json.dumps([wanted.document(), digests]),
            existing=existing,
            fields=wanted.fields,
            defaults=wanted.defaults,
            all_fields=wanted.all_fields,
        )
        return dataset if options.own is None else dataset.described_by(options.own)

    def plan_orders(
        self, request: BuildRequest, progress: Progress, keeping: Keeping
    ) -> tuple[Plan, list[OrderedSplit]]:
        """Return the plan, and the order of each of its splits.

        Raises:
            UsageError: Images are to be turned upright, but not the boxes in them.
        """
        plan, orders = super().plan_orders(request, progress, keeping)
        places = ", ".join(places_in_images(plan.features))
        if plan.options.images.apply_exif and places:
            raise UsageError(f"--apply-exif turns images, but not the places in them ({places}); leave it out")
        return plan, orders

    def _source(self, request: BuildRequest) -> Storage:
        return LINKS[_as_conversion(request).links](request.source_url)

    def job(self, request: BuildRequest, root: str, shards: int) -> BuildJob:
        """Return what a worker needs besides a shard's index."""
        links = _as_conversion(request).links
        return BuildJob(request.output_url, request.source_url, root, recipe="converted", links=links)

    def assemble(
        self, build: OpenBuild, request: BuildRequest, publishing: PublishingRows, log: Callable[[str], None]
    ) -> tuple[Manifest, Callable[[], None]]:
        """Write index and metadata, and put the files of an image folder in place."""
        manifest, check = super().assemble(build, request, publishing, log)
        source = named_source(open_storage(_as_conversion(request).index_url))
        return replace(manifest, shuffled=_conversion_of(request).is_shuffled, converted_from=source), check

    def is_shuffled(self, manifest: Manifest) -> bool:
        """Return what a manifest must say about the order of the samples, given its options."""
        converted = manifest.options.get("converted")
        return isinstance(converted, dict) and bool(converted.get("shuffle") or converted.get("was_shuffled"))


CONVERSIONS = ConversionRecipe()


def _existing_of(request: BuildRequest) -> Existing:
    """Open the dataset that a request converts.

    Raises:
        UsageError: There is no dataset.
        FormatError: Its manifest is not one that a build or an adoption writes.
    """
    conversion = _as_conversion(request)
    index = open_storage(conversion.index_url)
    return Existing(readable_manifest(index), index, LINKS[conversion.links](request.source_url))


def named_source(index: Storage) -> str:
    """Return the name of a dataset's place in the manifest: its URL, or on a disk its folder without the path."""
    return index.url.rpartition("/")[2] if index.is_local else index.url


def _as_conversion(request: BuildRequest) -> ConversionRequest:
    if not isinstance(request, ConversionRequest):
        raise UsageError(_NOT_CONVERTED)
    return request


def _conversion_of(request: BuildRequest) -> Conversion:
    converted = request.options.converted
    if converted is None:
        raise UsageError(_NOT_CONVERTED)
    return converted
