"""The request and the plan of a build from tables of URLs (a shard for each range of rows), and the part of a manifest
that only datasets of fetched images have, with their TFDS files.

The functions of a manifest are pure; if `shape_faults` yields nothing, its options can be read. `dataset_info.json`
and `features.json` for TFRecord shards are made from counts, without a pass over the data. They have the features that
CLIPA's reader expects: `jpg`, `txt`, and one for each column.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from dataprep.builder.finished import dataset_of, described, samples_by_number, shard_number
from dataprep.builder.plan import BuildOptions, BuildRequest, Plan, PlannedSplit
from dataprep.dataset.documents import convert
from dataprep.dataset.manifest import built_as, source_faults
from dataprep.dataset.records import Manifest, PlannedSource
from dataprep.errors import FormatError, SourceError, UsageError
from dataprep.fetched.collect import RowOptions
from dataprep.fetched.shard import FETCHED_FORMATS, ShardNames, ShardSchema, built_names, refuse_unfit, schema_with
from dataprep.formats import tfds
from dataprep.formats.img2dataset import STATUSES
from dataprep.formats.tfrecord import tfds_name
from dataprep.host.versions import codec_versions
from dataprep.messages import counted, quoted
from dataprep.sources import BUILT, laion
from dataprep.sources.archives import Progress
from dataprep.sources.base import UNSTATED, Dataset, OwnData
from dataprep.sources.tables import Column

if TYPE_CHECKING:
    from dataprep.web.requests import Limits


MAX_DIGITS = 12
"""Maximum number of digits of a shard's number."""
_TABLE_FIELDS = ("split", "name", "bytes", "rows", "sha256")


def laion_codecs() -> dict[str, str]:
    return codec_versions("opencv-python-headless")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRequest:
    """The tables to fetch, and the options for fetching."""

    sources: tuple[str, ...]
    """URLs of tables, or of one folder of them."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column name by role, for columns without one of the role's usual names."""
    rows_per_shard: int = laion.DEFAULT_ROWS_PER_SHARD
    rows: RowOptions = field(default_factory=RowOptions)
    limits: Limits
    """Limits of all workers together; not a part of the plan."""
    workers: int = 1
    """Number of worker processes, on all machines."""
    one_fetches_a_shard: bool = True
    """Whether a shard is never fetched by two processes at once. Parts of a build and cluster engines may retry a shard
    while its first worker, which they consider lost, still fetches it."""

    def fetching(self, shards: int) -> int:
        """Return the number of processes that share the limits while this number of shards is left to build."""
        return min(self.workers, max(shards, 1)) if self.one_fetches_a_shard else self.workers


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchRequest(BuildRequest):
    """A build whose originals are tables of URLs; any number of rows may fail."""

    tables: TableRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class LaionOptions:
    """Options in plan and manifest: everything needed to read, compare and retry the shards."""

    columns: dict[str, str]
    carried: tuple[Column, ...]
    """Columns of the table that are copied unchanged."""
    rows_per_shard: Annotated[int, Meta(ge=1)]
    shard_digits: Annotated[int, Meta(ge=1, le=MAX_DIGITS)]
    """Minimum number of digits of a shard's number in names."""
    rows: RowOptions

    @property
    def schema(self) -> ShardSchema:
        return schema_with(self.carried, self.rows)

    def document(self) -> dict[str, object]:
        document: dict[str, object] = json.loads(json.dumps(asdict(self)))
        return document


def plan_tables(request: TableRequest, options: BuildOptions, progress: Progress | None = None) -> Plan:
    """Measure the tables and plan one shard for each range of their rows. Raises SourceError if the tables are absent,
    damaged, empty, or have different columns, and UsageError if options need a column or feature that the tables or the
    format lack."""
    storage, names = laion.open_tables(request.sources)
    tables = laion.measure_tables(
        storage, names, rows_per_shard=request.rows_per_shard, overrides=request.columns, progress=progress
    )
    refuse_unfit(tables, request.rows, options.format)
    if not tables.rows:
        raise SourceError(f"{storage.url}: {counted(len(names), 'table')} without a row; check `source`")
    sources = tuple(
        PlannedSource(name=file.name, bytes=file.num_bytes, rows=file.rows, sha256=file.sha256) for file in tables.files
    )
    split = PlannedSplit(
        name=laion.SPLIT,
        shard_samples=tables.shard_rows,
        repeat_count=1,
        repeat_stored=1,
        sources=sources,
        enumeration_sha256=hashlib.sha256(json.dumps(sources).encode()).hexdigest(),
        source_bytes=0,  # not known before they are fetched
    )
    details = {"tables": tables.document(), "rows": asdict(request.rows)}
    return Plan(options=options, codecs=laion_codecs(), classes=(), splits=(split,), details=details)


def laion_of(plan: Plan) -> tuple[laion.LaionTables, LaionOptions]:
    at, details = f"$.{plan.options.dataset}", plan.details or {}
    tables = convert(details.get("tables"), laion.LaionTables, where="plan", at=f"{at}.tables", advice="build it again")
    return tables, LaionOptions(
        columns=tables.columns,
        carried=tables.carried,
        rows_per_shard=tables.rows_per_shard,
        shard_digits=tables.shard_digits,
        rows=convert(details.get("rows"), RowOptions, where="plan", at=f"{at}.rows", advice="build it again"),
    )


def build_options(format_name: str, own: OwnData | None = None) -> BuildOptions:
    """Return the build options common to all recipes; `own` has the user's statements about the table."""
    return BuildOptions(dataset=laion.LAION.name, format=format_name, splits=(laion.SPLIT,), own=own)


def is_fetched(manifest: Manifest) -> bool:
    """Return whether a build has fetched the images of a dataset."""
    dataset = BUILT.get(built_as(manifest))
    return dataset is not None and dataset.recipe == "web"


def laion_options(manifest: Manifest) -> LaionOptions:
    """Return the options of a fetched dataset's manifest. Raises FormatError if a value is missing, of another type or
    out of range, and UsageError if an option has an invalid value."""
    name = built_as(manifest)
    document, at = manifest.options.get(name), f"$.options.{name}"
    return convert(document, LaionOptions, where="manifest", at=at, advice="build it again")


def shape_faults(manifest: Manifest) -> Iterator[str]:
    """Yield faults that make sources, options or counts unreadable; see `Recipe.shape_faults`."""
    yield from source_faults(manifest, _TABLE_FIELDS)
    if manifest.format not in FETCHED_FORMATS:
        yield f"format {quoted(manifest.format)}, expected {' or '.join(FETCHED_FORMATS)}"
    for option, what in (("allow_networks", "networks"), ("consents", "policies")):
        values = manifest.options.get(option)
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            yield f"options.{option} is {quoted(values)}, expected a list of {what}"
    try:
        options = laion_options(manifest)
        carried = {name for name, _ in options.carried}
        sound = "url" in options.columns and options.columns.keys() <= laion.ROLES.keys()
        sound &= all(role in laion.RENAMED or name in carried for role, name in options.columns.items())
        problem = "" if sound else "an unknown role, or one whose column is not among those carried"
    except (FormatError, UsageError) as error:
        problem = str(error)
    if problem:
        yield f"options.{built_as(manifest)} cannot be read ({problem})"
    for split in manifest.splits:
        if set(split.statuses) != set(STATUSES):
            yield f"split {split.name}: statuses {quoted(sorted(split.statuses))}, expected {', '.join(STATUSES)}"


def sidecars_of(manifest: Manifest, position: int) -> tuple[str, str]:
    """Return the names of a shard's parquet file and of its stats."""
    _, parquet, stats = names_of(manifest).files(shard_number(manifest, manifest.splits[0], position) or 0)
    return parquet, stats


def names_of(manifest: Manifest) -> ShardNames:
    return built_names(manifest.name, manifest.format, laion.SPLIT, laion_options(manifest).shard_digits)


FILEPATH_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"
"""Names of shards contain only their number, so that shards can be added to a finished dataset."""


def tfds_files(manifest: Manifest) -> dict[str, bytes]:
    """Return TFDS's metadata files, name to content; none unless the format is tfrecord."""
    if manifest.format != "tfrecord":
        return {}
    dataset, split = dataset_of(manifest), manifest.splits[0]
    if dataset == laion.LAION and manifest.licence == UNSTATED:
        dataset = laion.UNNAMED
    samples, schema = {split.name: samples_by_number(manifest, split)}, laion_options(manifest).schema
    return metadata_files(dataset, schema, samples, {split.name: split.num_bytes})


def metadata_files(
    dataset: Dataset, schema: ShardSchema, shard_samples: Mapping[str, Sequence[int]], split_bytes: Mapping[str, int]
) -> dict[str, bytes]:
    """Return the files in the dataset's root, name to content, from the samples of each shard in the order of their
    numbers, and the bytes, by split."""
    names = tfds.TfdsNames(name=tfds_name(dataset.name))
    facts = described(dataset, (), shard_samples, split_bytes, names=names)
    info = tfds.dataset_info(facts, filepath_template=FILEPATH_TEMPLATE)
    kinds = {"string": tfds.text(), "int": tfds.scalar("int64"), "float": tfds.scalar("float32")}
    features = {column.name: kinds[column.kind] for column in schema.columns} | {"txt": tfds.text()}
    features[schema.image_name] = tfds.image("png" if schema.image_name == "png" else "jpeg")
    described_features = tfds.features_dict(features)
    return {"dataset_info.json": tfds.json_bytes(info), "features.json": tfds.json_bytes(described_features)}
