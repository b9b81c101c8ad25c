"""The recipe of datasets whose originals are images, in archives or folders.

    originals ─▶ enumeration (kept) ─▶ order, cut into shards ─▶ shards ─▶ index, metadata, manifest

`CONVERSIONS` is the same recipe over the samples of a finished dataset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from dataprep.arrays import NDArray, np, pa
from dataprep.builder import finished, merge, references, shard
from dataprep.builder.enumeration import Enumerator, Keeping
from dataprep.builder.output import Claim, OpenBuild
from dataprep.builder.plan import BuildOptions, BuildRequest, Plan, PlannedSplit, Progress, physical_key, planned_codecs
from dataprep.builder.recipe import PAGE_OBJECTS, BuildJob, Planned, Recipe, Traffic
from dataprep.builder.references import PLAN_WINDOW_BYTES
from dataprep.builder.shard import WRITES_BETWEEN_CHECKS
from dataprep.dataset import records
from dataprep.dataset.adopted import LINKS
from dataprep.dataset.columns import strings, to_numpy
from dataprep.dataset.features import FILE_NAME, Feature, places_in_images
from dataprep.dataset.index import ANNOTATIONS, PublishingRows
from dataprep.dataset.manifest import bytes_entry, source_faults
from dataprep.dataset.paths import named, readable
from dataprep.dataset.randomness import philox_words
from dataprep.dataset.revisions import first_shards
from dataprep.dataset.spill import SpilledReferences, SpilledTable, enumeration_sha256, in_order_of_words, spilled
from dataprep.dataset.views import address, read_view
from dataprep.errors import DataprepError, FormatError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.imagefolder import image_file, image_suffix
from dataprep.messages import quoted
from dataprep.sources import configured
from dataprep.sources.archives import BLOCK_BYTES
from dataprep.sources.base import CONVERTED, Conversion, Dataset
from dataprep.sources.keys import same_names
from dataprep.sources.unpacked import unpacked_sources
from dataprep.storage import Storage, expected, open_originals, open_storage
from dataprep.storage.checksums import crc32c_of


@dataclass(frozen=True, slots=True)
class OrderedSplit:
    """The references of a split, and their order in its shards."""

    refs: SpilledReferences
    tables: Callable[[SpilledTable, int], Iterator[pa.Table]]
    """Function that yields rows, one for each sample, in the order of a stored pass."""
    shard_samples: tuple[int, ...]
    """Samples of each shard, one stored pass after the other."""
    passes: int
    """Number of passes that are stored."""
    source_bytes: int
    """Bytes of the original images of one pass."""
    annotated: bool
    suffix: str = ""
    """Suffix of the file names that are added to the annotations; empty to add none."""

    def shards(self, *, checked: bool = False) -> Iterator[pa.Table]:
        """Yield the references of each shard, with the columns of `refs_schema`, and if `checked` with checksums."""
        rows = self.refs.rows()
        schema = references.refs_schema(with_annotations=self.annotated, with_crc32c=checked)
        shards_a_pass = len(self.shard_samples) // self.passes
        for pass_index in range(self.passes):
            due = self.shard_samples[pass_index * shards_a_pass : (pass_index + 1) * shards_a_pass]
            for table in _regrouped(self.tables(rows, pass_index), rows.schema, due):
                named = _with_file_names(table, self.suffix) if self.suffix else table
                yield _planned(named, pass_index if self.passes > 1 else None, schema)


def order_split(
    refs: SpilledReferences, options: BuildOptions, split: str, passes: int, *, annotated: bool
) -> OrderedSplit:
    """Divide one split into shards.

    Each stored pass is permuted with its own key and cut at equal shares of the source bytes, so that shards have
    nearly the same size and their number depends on the bytes alone. There are 5 `passes` for a physical `repeat` of a
    dataset repeated five times, else 1.
    """
    sizes = _sizes(refs)
    count, total = len(refs), sum(int(chunk.sum()) for chunk in _numbers(sizes.batches()))
    shards = options.shards_of(total)
    if options.num_shards is not None and shards > max(1, count):
        raise UsageError(f"`num_shards` {shards}: split {split} has only {count:,} samples; ask for fewer shards")

    def words(pass_index: int, first: int, batch: pa.RecordBatch) -> NDArray[np.uint64]:
        purpose = f"build/{split}"
        return philox_words(batch.num_rows, seed=options.seed, purpose=purpose, pass_index=pass_index, start=first)

    def tables(rows: SpilledTable, pass_index: int) -> Iterator[pa.Table]:
        if options.converted is not None and not options.converted.shuffle:
            return (pa.Table.from_batches([batch]) for batch in rows.batches())
        return in_order_of_words(rows, partial(words, pass_index))

    shard_samples: list[int] = []
    for pass_index in range(passes):
        chunks = _numbers(tables(sizes, pass_index))
        bounds = cut(chunks, min(shards, max(1, count)), count=count, total_bytes=total)
        shard_samples.extend(stop - start for start, stop in pairwise(bounds))
    suffix = image_suffix(options.dataset) if options.tfds.name else ""
    return OrderedSplit(refs, tables, tuple(shard_samples), passes, total, annotated or bool(suffix), suffix)


def cut(num_bytes: Iterable[NDArray[np.int64]], shards: int, *, count: int, total_bytes: int) -> list[int]:
    """Return the `shards + 1` boundaries at which the running sum of bytes passes equal shares of the total, from the
    source bytes of each sample in pieces of any length."""
    if total_bytes == 0:
        return [count * i // shards for i in range(shards + 1)]
    thresholds = np.array([-(-i * total_bytes // shards) for i in range(shards)], np.int64)
    bounds: list[int] = []
    samples_before = bytes_before = 0
    for chunk in num_bytes:
        before = bytes_before + np.cumsum(chunk) - chunk
        found = np.searchsorted(before, thresholds[len(bounds) :], side="left")
        bounds.extend(samples_before + int(position) for position in found[found < len(chunk)])
        samples_before, bytes_before = samples_before + len(chunk), bytes_before + int(chunk.sum())
    return [*bounds, *[count] * (shards + 1 - len(bounds))]


def _sizes(refs: SpilledReferences) -> SpilledTable:
    sizes = SpilledTable(pa.schema([("num_bytes", pa.int64())]), "the list of sizes")
    for batch in refs.batches():
        sizes.add(batch.select(["num_bytes"]))
    return sizes


def _numbers(tables: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[NDArray[np.int64]]:
    for table in tables:
        yield to_numpy(table.column(0))


def _regrouped(tables: Iterable[pa.Table], schema: pa.Schema, lengths: Iterable[int]) -> Iterator[pa.Table]:
    """Yield the rows of tables, in their order, as tables with the given lengths."""
    waiting = iter(tables)
    rest = pa.Table.from_batches([], schema)
    for length in lengths:
        pieces, missing = [], length
        while missing:
            if not rest.num_rows:
                rest = next(waiting)
            pieces.append(rest.slice(0, missing))
            missing -= pieces[-1].num_rows
            rest = rest.slice(pieces[-1].num_rows)
        yield pa.concat_tables([pa.Table.from_batches([], schema), *pieces]).combine_chunks()


def _planned(rows: pa.Table, pass_index: int | None, schema: pa.Schema) -> pa.Table:
    """Return the references of a shard as they are stored; in a physical pass the keys contain its number."""
    if pass_index is not None:
        keys = strings([physical_key(key, pass_index) for key in rows.column("key").to_pylist()])
        rows = rows.set_column(0, rows.schema.field(0), keys)
    return references.stored_rows(rows, schema)


def _with_file_names(rows: pa.Table, suffix: str) -> pa.Table:
    """Add the name of each image's file to its annotations."""
    texts = [
        json.dumps(
            json.loads(text or "{}") | {FILE_NAME: readable(key).rpartition("/")[2] + suffix},
            sort_keys=True,
            separators=(",", ":"),
        )
        for key, text in zip(*(rows.column(name).to_pylist() for name in ("key", "annotations")), strict=True)
    ]
    position = rows.schema.get_field_index("annotations")
    return rows.set_column(position, rows.schema.field(position), pa.array(texts, pa.large_string()))


_SOURCE_FIELDS = ("split", "name", "bytes", "enumeration_sha256")


class ArchiveRecipe(Recipe):
    """Builds datasets from images in archives and folders."""

    worker_modules: tuple[str, ...] = ("dataprep.builder.growth", "numpy", "pyarrow.parquet", "simplejpeg")
    shard_check = "dataprep.verification.shard:check_archive_shard"

    def plan(self, request: BuildRequest, progress: Progress, *, keep: bool, is_empty: bool = False) -> Planned:
        """List the originals of every split, permute them, and divide them into shards."""
        keeping = Keeping(open_storage(request.output_url) if keep else None, is_empty=is_empty)
        return storable(*self.plan_orders(request, progress, keeping), keeping)

    def plan_references(self, request: BuildRequest, progress: Progress) -> tuple[Plan, Iterator[pa.Table]]:
        """Return the plan, and the references of each of its shards; nothing is stored."""
        plan, orders = self.plan_orders(request, progress, Keeping(None))
        return plan, _tables(plan, orders)

    def plan_orders(
        self, request: BuildRequest, progress: Progress, keeping: Keeping
    ) -> tuple[Plan, list[OrderedSplit]]:
        """Return the plan, and the order of each of its splits; lists of originals are kept, or taken from there."""
        dataset, options, found = self._enumerated(request, progress, keeping)
        pairs = [ordered(dataset, name, each, options) for name, each in found.items()]
        return plan_of(options, found, [split for split, _ in pairs]), [order for _, order in pairs]

    def _enumerated(
        self, request: BuildRequest, progress: Progress, keeping: Keeping
    ) -> tuple[Dataset, BuildOptions, dict[str, records.Enumeration]]:
        """Return the dataset, the options with all its splits, and the originals of each split."""
        options = request.options
        enumerate_split = Enumerator(
            dataset=self._dataset(request),
            source=self._source(request),
            keeping=keeping,
            options=options,
            progress=progress,
            overwrite=request.overwrite or request.append,
            max_reject_ratio=request.max_reject_ratio,
        )
        enumerate_split.compare()
        options = replace(options, splits=enumerate_split.splits())
        found: dict[str, records.Enumeration] = {}
        classes: tuple[str, ...] | None = None
        for name in options.splits:
            progress.enumerating(name)
            enumeration = enumerate_split(name, classes)
            classes, refs = enumeration.classes, spilled(enumeration.refs)
            found[name] = replace(enumeration, refs=refs)
            if options.own is not None and FORMATS[options.format].one_file_per_image:
                _refuse_shared_files(refs, classes, name, options)
        enumerate_split.note()
        return enumerate_split.dataset, options, found

    def _dataset(self, request: BuildRequest) -> Dataset:
        return _configured(request.options)

    def _source(self, request: BuildRequest) -> Storage:
        return open_originals(request.source_url)

    def job(self, request: BuildRequest, root: str, shards: int) -> BuildJob:
        return BuildJob(request.output_url, request.source_url, root, recipe="archives")

    def build_shard(self, job: BuildJob, index: int) -> records.ShardReceipt:
        return shard.ShardBuilder(job).begin(index).result()

    def begin_shard(self, job: BuildJob, index: int) -> Future[records.ShardReceipt]:
        return shard.shard_builder(job).begin(index)

    def assemble(
        self, build: OpenBuild, request: BuildRequest, publishing: PublishingRows, log: Callable[[str], None]
    ) -> tuple[records.Manifest, Callable[[], None]]:
        storage, plan = build.storage, build.plan
        published, noticed = merge.Published(build, _described_files(plan)), merge.BuildNotes(build)
        splits = _merged(build, self._seen(build, request, published, noticed), publishing)
        if any(merge.rejects_too_many(split, request.max_reject_ratio) for split in splits):
            publishing.wait()  # the error names images of the events
        merge.refuse_rejections(build, request.max_reject_ratio, splits)
        manifest = merge.build_manifest(plan, _configured(plan.options), splits)
        files = self.metadata_files(manifest)
        if files or FORMATS[plan.options.format].one_file_per_image:
            publishing.wait()  # later files need the index in place
        for name, data in files.items():
            storage.create(name, data)
        shard.place_images(build)
        entries = [bytes_entry(name, data) for name, data in files.items()]
        entries += shard.publish_annotations(build, splits)
        entries.sort(key=lambda entry: entry["file"])
        for line in noticed.lines():
            log(line)
        return replace(manifest, files=tuple(entries)), published.check

    def _seen(
        self, build: OpenBuild, request: BuildRequest, published: merge.Published, noticed: merge.BuildNotes
    ) -> merge.Seen:
        """Return a function that takes a receipt with its rows, and compares the originals with the listed ones."""
        source = expected(self._source(request))
        unpacked = {entry["name"] for split in build.plan.splits for entry in unpacked_sources(split.sources)}

        def seen(receipt: records.ShardReceipt, rows: pa.Table) -> None:
            published.expect(receipt.index, shard.files_of(build, receipt, rows))
            noticed.add(receipt, rows)
            shard.refuse_changed_originals(source, references.references_of(build, receipt.index), unpacked)

        return seen

    def output_traffic(self, plan: Plan, *, workers: int) -> Traffic:
        single = FORMATS[plan.options.format].one_file_per_image
        shards, splits = plan.num_shards, len(plan.splits)
        samples = sum(sum(split.shard_samples) for split in plan.splits)
        described = 2 * splits + len(finished.planned_metadata(plan)) + 1
        cards = 2 + (plan.options.format == "webdataset")  # which are uploaded under their own names
        # Each object except single images is uploaded, and then copied to its name by the server.
        inserts = 2 * described + cards + (samples + splits if single else 2 * shards)
        # Receipts, plan.json and the references; for each split its list of originals, and the list's digest.
        kept_while_building = shards + 2 + 2 * splits
        listed = shards + (samples if single else shards)
        pages = _WHOLE_LISTINGS * (listed // PAGE_OBJECTS) + shards // PAGE_OBJECTS
        stored = sum(split.source_bytes * split.repeat_stored for split in plan.splits)
        unpacked, images, unpacked_bytes = _unpacked(plan)
        inserts += unpacked
        # plan.json is looked at before the server copies an object to its name, and before images get theirs.
        all_shards = [count for split in plan.splits for count in split.shard_samples]
        checks = described + (sum(-(-count // WRITES_BETWEEN_CHECKS) for count in all_shards) if single else shards)
        windows = -(-samples * _REFERENCE_BYTES // PLAN_WINDOW_BYTES)
        processes = min(workers, shards)
        plan_gets = _GETS_A_PROCESS + windows  # when the index is written, all references are compared
        # A worker reads the references of its shards.
        plan_gets += processes * (_GETS_A_PROCESS + min(windows, -(-shards // max(1, processes))))
        gets = _GETS_A_SHARD * shards + checks + plan_gets + _GETS
        return Traffic(inserts + kept_while_building + _LISTS + pages, gets + images, stored + unpacked_bytes)

    def source_traffic(self, plan: Plan) -> Traffic:
        """Return the traffic between a build and its originals: archives are streamed once to list them, then every
        image is read. Parquet files with images are only streamed."""
        archives = {
            str(source["name"]): int(source["bytes"])
            for split in plan.splits
            for source in split.sources
            if str(source["name"]).endswith(_ARCHIVES) or "sha256" in source
        }
        _, unpacked, unpacked_bytes = _unpacked(plan)
        samples = sum(sum(split.shard_samples) for split in plan.splits) - unpacked
        images = sum(split.source_bytes * split.repeat_stored for split in plan.splits) - unpacked_bytes
        walked = sum(-(-num_bytes // BLOCK_BYTES) for num_bytes in archives.values())
        looks = sum(_GETS_AN_ARCHIVE for name in archives if name.endswith(_ARCHIVES))
        looks += sum(_GETS_A_ZIP for name in archives if name.endswith(".zip"))
        listed = 0 if archives else samples // PAGE_OBJECTS + 1
        return Traffic(listed, samples + walked + looks, images + sum(archives.values()))

    def planned_files(self, storage: Storage, claim: Claim) -> Iterator[str]:
        plan = claim.plan
        yield from _described_files(plan)
        for split in plan.splits:
            if FORMATS[plan.options.format].one_file_per_image:
                tables = references.read_references(storage, claim, plan.shards_of(split.name))
                images = (name for table in tables for name in shard.image_names(plan, split, table))
                yield from finished.with_links(images, split.name, split.repeat_count if split.repeat_stored > 1 else 0)
            else:
                yield from (plan.shard_file(split, index) for index in range(len(split.shard_samples)))

    def shard_file(self, manifest: records.Manifest, split: records.SplitManifest, number: int) -> str:
        names = finished.tfds_names(manifest)
        name, split_name = names.name or manifest.name, names.split(split.name)
        total = first_shards(manifest, split.name, len(split.shards))
        return FORMATS[manifest.format].shard_file(name, split_name, number, total)

    def sidecar_files(self, manifest: records.Manifest) -> frozenset[str]:
        return frozenset(
            shard.annotation_files(manifest.format, manifest.features, (split.name for split in manifest.splits))
        )

    def metadata_files(self, manifest: records.Manifest) -> dict[str, bytes]:
        """Return the metadata files that the format writes for the manifest's counts."""
        dataset = replace(finished.dataset_of(manifest), licence=manifest.licence)
        return finished.metadata_of(manifest, dataset, finished.tfds_names(manifest))

    def shape_faults(self, manifest: records.Manifest) -> Iterator[str]:
        """Yield faults of the manifest's sources, which must be archives or folders."""
        yield from source_faults(manifest, _SOURCE_FIELDS, optional=("sha256",))
        try:
            finished.tfds_names(manifest)
        except (FormatError, UsageError) as error:
            yield f"options.tfds cannot be read ({error})"

    def layout_faults(self, manifest: records.Manifest) -> Iterator[str]:
        """Yield the annotation files that are not listed; `verify` compares the metadata files themselves."""
        listed = {entry["file"] for entry in manifest.files}
        for name in sorted(self.sidecar_files(manifest) - listed):
            yield f"files: {name} is not among them, expected the annotations of a split"

    def option_faults(self, manifest: records.Manifest) -> Iterator[str]:
        images = manifest.options.get("images")
        pairs = {
            "allow_partial": (manifest.options.get("allow_partial"), manifest.partial),
            "images.check": (images.get("check") if isinstance(images, dict) else None, manifest.checked),
        }
        for name, (option, fact) in pairs.items():
            if option != fact:
                yield f"options.{name} is {quoted(option)}, elsewhere it says {quoted(fact)}"
        if manifest.options.get("repeat") not in ("virtual", "physical"):
            yield f"options.repeat is {quoted(manifest.options.get('repeat'))}, expected virtual or physical"
        if manifest.checked not in ("decode", "header", "none"):
            yield f"checked {quoted(manifest.checked)}, expected decode, header or none"


def _described_files(plan: Plan) -> list[str]:
    """Return the names of the format's own metadata files and of the annotations of an image folder."""
    splits = (split.name for split in plan.splits)
    return [*finished.planned_metadata(plan), *shard.annotation_files(plan.options.format, plan.features, splits)]


def _configured(options: BuildOptions) -> Dataset:
    return configured(
        options.dataset, fake_images=options.fake_images, own=options.own, annotations=options.annotations
    )


def plan_of(options: BuildOptions, found: Mapping[str, records.Enumeration], splits: Sequence[PlannedSplit]) -> Plan:
    last = found[options.splits[-1]]
    features = {**last.features, FILE_NAME: Feature("text")} if options.tfds.name else last.features
    return Plan(
        options=options,
        codecs=planned_codecs(options.images),
        classes=last.classes,
        splits=tuple(splits),
        features=dict(FORMATS[options.format].placed(features, dict(options.members))),
    )


def storable(plan: Plan, orders: Sequence[OrderedSplit], keeping: Keeping) -> Planned:
    """Return a plan with the functions that store its references."""
    tables, again = _tables(plan, orders), _tables(plan, orders)
    schema = references.refs_schema(with_annotations=bool(plan.features), with_crc32c=_is_checked(plan))
    return Planned(
        plan,
        store=partial(references.store_references, tables, schema),
        repair=partial(references.repair_references, tables, schema),
        kept=keeping.wait,
        is_of=partial(references.are_stored, again, schema),
    )


def _tables(plan: Plan, orders: Iterable[OrderedSplit]) -> Iterator[pa.Table]:
    checked = _is_checked(plan)
    return (table for order in orders for table in order.shards(checked=checked))


def ordered(
    dataset: Dataset, name: str, found: records.Enumeration, options: BuildOptions
) -> tuple[PlannedSplit, OrderedSplit]:
    stored = dataset.repeats(name) if options.repeat == "physical" else 1
    refs = spilled(found.refs)
    passes = FORMATS[options.format].passes_written(stored)
    order = order_split(refs, options, name, passes, annotated=bool(found.features))
    planned = PlannedSplit(
        name=name,
        shard_samples=order.shard_samples,
        repeat_count=dataset.repeats(name),
        repeat_stored=stored,
        sources=tuple(_planned_source(file) for file in found.sources),
        enumeration_sha256=enumeration_sha256(refs),
        source_bytes=order.source_bytes,
    )
    return planned, order


def _is_checked(plan: Plan) -> bool:
    """Return whether the images must have checksums: images of a converted dataset, and unpacked images."""
    return plan.options.converted is not None or any(unpacked_sources(split.sources) for split in plan.splits)


def _planned_source(file: records.SourceFile) -> records.PlannedSource:
    entry: records.PlannedSource = {"name": file.name, "bytes": file.num_bytes}
    return {**entry, "sha256": file.sha256} if file.sha256 else entry


def _merged(build: OpenBuild, seen: merge.Seen, publishing: PublishingRows) -> list[records.SplitManifest]:
    """Merge the receipts of all splits. Raises OvertakenError if another build owns the output now."""

    def merged(check: merge.Check) -> list[records.SplitManifest]:
        return [merge.merge_split(build, split, publishing, check=check, seen=seen) for split in build.plan.splits]

    if build.storage.is_local:
        build.check()
        return merged(partial(check_kept, build))
    with ThreadPoolExecutor(2) as threads:  # while the receipts are read
        is_ours = threads.submit(build.check)
        opened = threads.submit(references.open_references, build)

        def check(index: int, receipt: records.ShardReceipt, rows: pa.Table) -> tuple[int, bool]:
            is_ours.result()
            opened.result()
            return check_kept(build, index, receipt, rows)

        try:
            return merged(check)
        except DataprepError:
            is_ours.result()  # says why receipts are gone
            raise


def check_kept(build: OpenBuild, index: int, receipt: records.ShardReceipt, rows: pa.Table) -> tuple[int, bool]:
    """Count the samples of a receipt, and compare its accepted samples with the planned ones, in order."""
    rejected = {event.key for event in receipt.events if event.kind == "rejected"}
    planned = references.references_of(build, index)
    keys = planned.column("key").to_pylist()
    same = [key for key in keys if key not in rejected] == rows.column("key").to_pylist()
    if build.plan.features:
        texts = planned.column("annotations").to_pylist()
        due = [crc32c_of(text.encode()) for key, text in zip(keys, texts, strict=True) if key not in rejected]
        same &= due == rows.column(ANNOTATIONS).to_pylist()
    return rows.num_rows + len(rejected), same


def _refuse_shared_files(refs: SpilledReferences, classes: tuple[str, ...], split: str, options: BuildOptions) -> None:
    """Raise UsageError if two samples of a user's own data would be the same file of an image folder."""
    root = FORMATS[options.format].image_root(split, 1)

    def names(batch: pa.RecordBatch) -> list[str]:
        return [file.lower() for file in finished.image_files(batch, root, classes, options.dataset)]

    for first, second, _ in same_names(refs, names):
        if first.source != second.source or options.converted is not None:
            class_name = "" if second.label == records.NO_LABEL else classes[second.label]
            file = image_file(root, second.key, class_name, image_suffix(options.dataset))
            both = f"{first.source} and {second.source}"
            if first.source == second.source:
                both = f"{named(first.key)} and {named(second.key)} of {first.source}"
            raise UsageError(
                f"{both} would both be {file} in an image folder, "
                "which has one folder for each class; rename one, or use `format` webdataset or tfrecord"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionRequest(BuildRequest):
    """A conversion of a finished dataset; `source_url` is the place of the shards."""

    index_url: str
    """URL of manifest and index: `source_url`, another folder for adopted data, or the address of a view."""
    links: str
    """Policy for links in the folder of the shards: a name in `dataprep.dataset.adopted.LINKS`."""


class ConversionRecipe(ArchiveRecipe):
    """Builds a dataset from the images in the shards of another one."""

    def _dataset(self, request: BuildRequest) -> Dataset:
        from dataprep.sources import existing as sources  # not needed to build originals

        options, (asked, wanted) = request.options, _conversion_of(request)
        url, name = address(asked.index_url)
        index = open_storage(url)
        manifest = finished.readable_manifest(index)
        view = read_view(index, manifest, name) if name else None
        manifest = manifest if view is None else view.of(manifest)
        existing = sources.Existing(manifest, index, LINKS[asked.links](request.source_url))
        found = manifest.plan_hash, manifest.revision, manifest.shuffled, "" if view is None else view.sha256
        if found != (wanted.plan_hash, wanted.revision, wanted.was_shuffled, wanted.view):
            raise UsageError(f"{index.url}: the dataset was replaced meanwhile; run the same command again")
        digests = {split.name: split.index["sha256"] for split in manifest.splits}
        facts = sources.split_facts(existing, options.splits, options.own)
        known = vars(CONVERTED) | {"facts": facts, "identity": json.dumps([wanted.document(), digests])}
        dataset = sources.ExistingDataset(**known, existing=existing, wanted=wanted)
        return dataset if options.own is None else dataset.described_by(options.own)

    def plan_orders(
        self, request: BuildRequest, progress: Progress, keeping: Keeping
    ) -> tuple[Plan, list[OrderedSplit]]:
        """Return the plan, and the order of each of its splits. Raises UsageError if the images would be turned
        upright, but their boxes would not."""
        plan, orders = super().plan_orders(request, progress, keeping)
        places = ", ".join(places_in_images(plan.features))
        if plan.options.images.apply_exif and places:
            raise UsageError(f"`apply_exif` turns images, but not their boxes and points ({places}); leave it out")
        if FILE_NAME in plan.features and FORMATS[plan.options.format].one_file_per_image:
            raise UsageError(
                f"`format` {plan.options.format}: metadata.jsonl has a {FILE_NAME} of its own, and the samples have "
                "one for TFDS; build the image folder from the original files"
            )
        return plan, orders

    def _source(self, request: BuildRequest) -> Storage:
        return LINKS[_conversion_of(request)[0].links](request.source_url)

    def job(self, request: BuildRequest, root: str, shards: int) -> BuildJob:
        links = _conversion_of(request)[0].links
        return BuildJob(request.output_url, request.source_url, root, recipe="converted", links=links)

    def assemble(
        self, build: OpenBuild, request: BuildRequest, publishing: PublishingRows, log: Callable[[str], None]
    ) -> tuple[records.Manifest, Callable[[], None]]:
        manifest, check = super().assemble(build, request, publishing, log)
        asked, wanted = _conversion_of(request)
        url, name = address(asked.index_url)
        index = open_storage(url)
        # On disk the source is named by its folder alone: the manifest has no path of this machine.
        source = (index.url.rpartition("/")[2] if index.is_local else index.url) + (f"@{name}" if name else "")
        return replace(manifest, shuffled=wanted.is_shuffled, converted_from=source), check

    def is_shuffled(self, manifest: records.Manifest) -> bool:
        converted = manifest.options.get("converted")
        return isinstance(converted, dict) and bool(converted.get("shuffle") or converted.get("was_shuffled"))


CONVERSIONS = ConversionRecipe()


def _conversion_of(request: BuildRequest) -> tuple[ConversionRequest, Conversion]:
    if not isinstance(request, ConversionRequest) or request.options.converted is None:
        raise UsageError("a request to build original files, expected one to convert a dataset: use dataprep convert")
    return request, request.options.converted


# Requests to buckets

_ARCHIVES = (".tar", ".zip", ".gz")
_GETS_AN_ARCHIVE = 2
"""Metadata requests for each archive: whether it exists, and its size before it is listed."""
_GETS_A_ZIP = 2
"""Reads at the end of a zip: the record with the place of its directory, and the directory."""
_LISTS = 4
"""Number of listings: of the output when the build begins, before the manifest is put and afterwards, and of the files
to remove; further pages of long listings are extra."""
_WHOLE_LISTINGS = 2
"""Listings of all the output, with its receipts."""
_GETS_A_SHARD = 2
"""Reads for each shard: its receipt when the index is written, and a look at plan.json after the receipt was stored."""
_GETS_A_PROCESS = 1
"""Reads of each process that reads references: the checksum of the file."""
_REFERENCE_BYTES = 80
"""Approximate size of an image's reference in plan.parquet, which is read in parts of PLAN_WINDOW_BYTES."""
_GETS = 4
"""Reads of a build of any size: a look at plan.json before the index is written, at the manifest once it is put, and at
both before the build's own files are removed."""


def _unpacked(plan: Plan) -> tuple[int, int, int]:
    """Return the number of parquet files that are unpacked below the output, and their images' number and bytes."""
    splits = [split for split in plan.splits if unpacked_sources(split.sources)]
    files = {source["name"] for split in splits for source in unpacked_sources(split.sources)}
    return len(files), sum(sum(each.shard_samples) for each in splits), sum(each.source_bytes for each in splits)
