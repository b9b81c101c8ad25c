"""The plan of a build: its options, and the shape of every split.

The plan is stored before the first shard is written, and its hash covers everything that the dataset's bytes depend on
(see the docstring of dataprep/builder). archives.py divides samples into shards. From the differences between two plans
the user chooses other options, another output, or `overwrite`. So messages name an option by its field, with both
values, and give counts if originals differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal, NamedTuple, Protocol

from msgspec import Meta

from dataprep.builder.images import RESTART_LIBRARY, ImagePolicy, library_version
from dataprep.dataset.documents import MAX_CHARACTERS, Count, JsonObject, convert
from dataprep.dataset.features import Feature, feature_faults, features_document
from dataprep.dataset.manifest import built_as, source_entry
from dataprep.dataset.randomness import ORDER_VERSION
from dataprep.dataset.records import ALL_FILES, MAX_KEY_BYTES, Manifest, PlannedSource, ShardReceipt, SourceEntry
from dataprep.errors import FormatError, UsageError
from dataprep.formats import FORMATS
from dataprep.formats.tfds import OWN_NAMES, TfdsNames
from dataprep.host.versions import CODECS, codec_versions
from dataprep.messages import counted, printable, shell_words, shortened
from dataprep.sources.base import Conversion, OwnData
from dataprep.storage import Storage
from dataprep.storage.checksums import HashingWriter, crc32c_hex, crc32c_of_stream


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size and checksum of a file."""

    bytes: Count
    crc32c: Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/]{6}==\Z")]
    """Base64, as Cloud Storage writes it. Every flipped bit changes it."""

    def document(self) -> dict[str, int | str]:
        return {"bytes": self.bytes, "crc32c": self.crc32c}


def digest_of(written: HashingWriter) -> FileDigest:
    return FileDigest(written.num_bytes, written.crc32c)


def fault_of(storage: Storage, name: str, expected: FileDigest) -> str | None:
    """Compare a complete file with its digest; if they differ, return a text with found and expected values.

    On disk the file is read; a bucket keeps the checksum of each object, so one request is enough. Raises
    FileNotFoundError if there is no such file.
    """
    info = storage.stat(name)
    if info is None:
        raise FileNotFoundError(storage.url_of(name))
    if info.num_bytes != expected.bytes:
        return f"{info.num_bytes:,} bytes, expected {expected.bytes:,}"
    crc32c = info.crc32c
    if crc32c is None:
        with storage.open(name) as stream:
            crc32c = crc32c_of_stream(stream)
    if crc32c != expected.crc32c:
        return f"CRC32C {crc32c_hex(crc32c)}, expected {crc32c_hex(expected.crc32c)}"
    return None


PLAN_SCHEMA = "1.0"
DEFAULT_SHARD_BYTES = 256 * 2**20
MIN_SHARDS, MIN_SHARD_BYTES = 64, 2**20
"""Number of shards of a split by default, if each holds this many source bytes: webdataset needs a shard for each
worker of each rank, here 8 ranks of 8. It does not depend on the machine's cores, so the bytes do not either."""
_VERSION_CHARACTERS = 300
Repeat = Literal["virtual", "physical"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """Options that change a dataset's bytes; not its URL, the number of workers, or limits on rejections."""

    dataset: str
    format: str
    splits: tuple[str, ...]
    seed: int = 0
    shard_bytes: int = DEFAULT_SHARD_BYTES
    """Approximate number of source bytes of each shard; ignored if num_shards is given. The default is an upper bound:
    a small split has MIN_SHARDS smaller ones."""
    num_shards: int | None = None
    """Number of shards of each split, or of each stored pass of it."""
    repeat: Repeat = "virtual"
    images: ImagePolicy = field(default_factory=ImagePolicy)
    allow_partial: bool = False
    fake_images: int | None = None
    """Number of train images of imagenet-fake."""
    own: OwnData | None = None
    """The user's statements about their own data; if no split is named, all splits that are found are built."""
    converted: Conversion | None = None
    """Settings for converting a finished dataset; None to build original files."""
    annotations: tuple[str, ...] | None = None
    """Kinds of annotations of coco."""
    tfds: TfdsNames = OWN_NAMES
    members: tuple[tuple[str, str], ...] = ()
    """Suffixes of members that the user chose, by feature, sorted."""

    def __post_init__(self) -> None:
        _require(self.seed >= 0, f"`seed` must be 0 or more, got {self.seed}")
        _require(self.shard_bytes >= 1, f"`shard_bytes` must be 1 or more, got {self.shard_bytes}")
        _require(
            self.num_shards is None or self.num_shards >= 1, f"`num_shards` must be 1 or more, got {self.num_shards}"
        )
        _require(bool(self.splits) or self.own is not None, "no split to build; name one with `split`")
        side, quality = self.images.short_side, self.images.quality
        _require(side is None or side >= 1, f"`resize` must be 1 pixel or more, got {side}")
        _require(
            self.format == "tfrecord" or self.tfds == OWN_NAMES,
            "`tfds_name`, `tfds_version` and `val_name` need `format` tfrecord",
        )
        _require(
            self.tfds.val not in {"train", "test", *self.splits} - {"val"},
            f"`val_name` {self.tfds.val}: another split has this name",
        )
        _require(1 <= quality <= 100, f"`quality` must be 1..100, got {quality}")
        if self.images.check == "none" and (side is not None or self.images.apply_exif):
            raise UsageError("`check` none reads no image, so `resize` and `apply_exif` need `check` header or decode")
        if self.images.check == "none" and self.images.jpeg == "restart":
            raise UsageError("`check` none reads no image, so `jpeg` restart needs `check` header or decode")

    @property
    def name(self) -> str:
        """The dataset's name; for a user's own data, the name that the user chose."""
        return self.dataset if self.own is None else self.own.name

    def shard_file(self, split: str, index: int, total: int) -> str:
        """Return the name of a shard; see `ShardFormat.shard_file`."""
        return FORMATS[self.format].shard_file(self.tfds.name or self.name, self.tfds.split(split), index, total)

    def shards_of(self, source_bytes: int) -> int:
        """Return the number of shards of a split with this many bytes of original images."""
        if self.num_shards is not None:
            return self.num_shards
        least = min(MIN_SHARDS, source_bytes // MIN_SHARD_BYTES) if self.shard_bytes == DEFAULT_SHARD_BYTES else 1
        return max(1, least, -(-source_bytes // self.shard_bytes))

    def document(self) -> JsonObject:
        values = asdict(self)
        values["own"] = None if self.own is None else self.own.document()
        values["converted"] = None if self.converted is None else self.converted.document()
        for name in ("own", "converted", "annotations"):
            if values[name] is None:
                del values[name]
        if not self.members:
            del values["members"]
        if self.images.jpeg == "untouched":
            del values["images"]["jpeg"]
        if self.tfds == OWN_NAMES:
            del values["tfds"]
        document: JsonObject = json.loads(json.dumps(values))  # tuples become lists, as when it is read back
        return document


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSplit:
    """The plan of one split: its shards' sizes and its sources."""

    name: str
    shard_samples: tuple[int, ...]
    repeat_count: int
    """Passes over the stored references that make an epoch."""
    repeat_stored: int
    sources: tuple[PlannedSource, ...]
    enumeration_sha256: str
    source_bytes: int
    """Bytes of the original images of one pass."""
    first_shard: int = 0
    """Position of the first shard, which follows the shards of a dataset that grows."""
    first_number: int = 0
    """Number in the name of the first shard."""
    built_shards: int = 0
    """Number of shards in the names of a dataset that grows, from its first build; 0 for the shards of this plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The plan, as `_build/plan.json` holds it; the references are in `plan.parquet`, a row group for each shard."""

    options: BuildOptions
    codecs: dict[str, str]
    classes: tuple[str, ...]
    splits: tuple[PlannedSplit, ...]
    details: JsonObject | None = None
    """Further options of the dataset's recipe; the document has them under the dataset's name."""
    features: dict[str, Feature] = field(default_factory=dict)
    """Types of a sample's values in addition to image, key and label; the document omits an empty field."""
    grows: str = ""
    """SHA-256 of the manifest of the dataset to which the shards are added; the document omits an empty field."""

    def document(self) -> JsonObject:
        values = {"schema": PLAN_SCHEMA, "order_version": ORDER_VERSION, **asdict(self)}
        values["options"] = self.options.document()
        values["features"] = features_document(self.features)
        if not self.features:
            del values["features"]
        if not self.grows:
            del values["grows"]
            for split in values["splits"]:
                del split["first_shard"], split["first_number"], split["built_shards"]
        details = values.pop("details")
        if details is not None:
            values[self.options.dataset] = details
        body: JsonObject = json.loads(json.dumps(values))  # tuples become lists, as when it is read back
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return body | {"plan_hash": hashlib.sha256(canonical.encode()).hexdigest()}

    @property
    def plan_hash(self) -> str:
        """Hash of everything that the dataset's bytes depend on."""
        return str(self.document()["plan_hash"])

    @property
    def num_shards(self) -> int:
        return sum(len(split.shard_samples) for split in self.splits)

    def source_entries(self) -> list[SourceEntry]:
        """Return the original files as a manifest lists them."""
        pairs = ((split, source) for split in self.splits for source in split.sources)
        return [source_entry(split.name, source, split.enumeration_sha256) for split, source in pairs]

    def shard_file(self, split: PlannedSplit, position: int) -> str:
        """Return the name of a shard by its position among the planned shards of its split."""
        total = split.built_shards or len(split.shard_samples)
        return self.options.shard_file(split.name, split.first_number + position, total)

    def shards_of(self, name: str) -> range:
        first = 0
        for split in self.splits:
            if split.name == name:
                return range(first, first + len(split.shard_samples))
            first += len(split.shard_samples)
        raise UsageError(f"the plan has no split {name}")

    def locate(self, index: int) -> tuple[PlannedSplit, int]:
        """Return the split of a shard, and the shard's position in it."""
        position = index
        for split in self.splits:
            if position < len(split.shard_samples):
                return split, position
            position -= len(split.shard_samples)
        raise UsageError(f"shard {index} past the end: the plan has {self.num_shards} shards")


def plan_from_document(document: JsonObject, *, where: str = "plan", advice: str = "build it again") -> Plan:
    """Read back what `Plan.document` wrote. Raises FormatError if the document is not a plan, and UsageError if an
    option has an invalid value."""
    plan = convert(document, Plan, where=where, advice=advice)
    for fault in feature_faults(plan.features):
        raise FormatError(f"{where}: {fault}; {advice}")
    name = plan.options.dataset
    if name not in document:
        return replace(plan, details=None)
    return replace(plan, details=convert(document[name], JsonObject, where=where, advice=advice, at=f"$.{name}"))


def same_but_codecs(plan: Plan, codecs: Mapping[str, str], plan_hash: str) -> bool:
    """Return whether a plan would have this hash with these codec versions; it then writes files of the same names."""
    return replace(plan, codecs=dict(codecs)).plan_hash == plan_hash


def other_versions(made: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Describe codec versions that differ, e.g. `made with pillow 13.0.0 (this is 12.3.0)`; empty if none differs."""
    names = [name for name in sorted(made.keys() | here.keys()) if made.get(name) != here.get(name)]
    versions = ", ".join(f"{name} {made.get(name, 'none')} (this is {here.get(name, 'none')})" for name in names)
    return f"made with {shortened(printable(versions), _VERSION_CHARACTERS)}" if versions else ""


def physical_key(key: str, pass_index: int) -> str:
    """Return the key of a sample in one stored pass of a physically repeated split; long keys end with a hash."""
    suffix = f"-r{pass_index}"
    if len(key) + len(suffix) > MAX_KEY_BYTES:
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        key = f"{key[: MAX_KEY_BYTES - len(suffix) - len(digest) - 3]}=00{digest}"
    return key + suffix


def planned_codecs(images: ImagePolicy) -> dict[str, str]:
    """Return the installed versions of the codecs that a dataset's bytes depend on. Raises UsageError if the policy
    asks for restart markers, and the extension that writes them was not built."""
    restarts = {RESTART_LIBRARY: library_version()} if images.jpeg == "restart" else {}
    return {**codec_versions(), **restarts}


def refuse_other_codecs(planned: Mapping[str, str]) -> None:
    """Raise UsageError if this process has other versions of the codec libraries than the plan names."""
    packages = [package for package in planned if package != RESTART_LIBRARY]
    here = codec_versions(*(package for package in packages if package not in CODECS))
    other = [package for package in packages if here.get(package) != planned[package]]
    if other:
        have = ", ".join(f"{package} {here.get(package)}" for package in other)
        need = [f"{package}=={planned[package]}" for package in other]
        raise UsageError(
            f"this worker has {have}, but the plan was made with {' '.join(need).replace('==', ' ')}; different "
            "versions write different bytes. Install the planned ones on every worker: "
            f"pip install {shell_words(*need)}"
        )
    if RESTART_LIBRARY in planned and library_version() != planned[RESTART_LIBRARY]:
        raise UsageError(
            f"this worker has {RESTART_LIBRARY} {library_version()}, but the plan was made with {RESTART_LIBRARY} "
            f"{planned[RESTART_LIBRARY]}; different versions write different bytes. Install tpu-dataprep with the "
            "planned one on every worker"
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """A build's options, source, output and limits. A recipe that needs more has its own subclass."""

    options: BuildOptions
    source_url: str
    output_url: str
    max_reject_ratio: float
    """Share of a split's images that may be rejected, 0 to 1."""
    overwrite: bool = False
    append: bool = False
    """Whether to append originals that the finished dataset lacks."""


class Progress(Protocol):
    """Receiver of a build's progress reports."""

    def enumerating(self, split: str) -> None:
        """The originals of a split are being listed."""

    def reading(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """The first `done_bytes` of an original archive were listed or hashed."""

    def log(self, line: str) -> None:
        """Show the user a line about the originals that were found."""

    def planned(self, plan: Plan, done: set[int]) -> None:
        """The plan is stored; the shards in `done` are built already."""

    def shard_done(self, receipt: ShardReceipt) -> None:
        """One more shard is done."""

    def assembling(self) -> None:
        """All shards are done; index and manifest are being written."""


# Differences between the plan of a build and another plan or a finished dataset

SHOWN = 6
"""Maximum number of differences in a message."""
ADDRESS_CHARACTERS = 300
"""Maximum number of characters shown of an address; a Hub address ends with the commit, which continues a build."""
FIELDS = {
    "splits": "split",
    "fake_images": "images",
    "images.short_side": "resize",
    "own.split_seed": "seed",
    "own.defaults": "default",
    "own.pass_over": "exclude",
    "own.archive": "source",
    "tfds.name": "tfds_name",
    "tfds.version": "tfds_version",
    "tfds.val": "val_name",
    "converted.fields": "field",
    "converted.all_fields": "field",
    "converted.columns": "column",
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
    "converted.view": "the view that is converted",
    "converted.was_shuffled": "the random order of the dataset that is converted",
    "rows.digest": "the hash that is stored",
    "rows.encode.resize_only_if_bigger": "the rule that only larger images are resized",
    "rows.encode.skip_reencode": "the rule that images which fit are stored as they are",
}
"""Names of options that do not depend on one field alone, by the same paths."""
_ABSENT = {
    "images.jpeg": "untouched",
    "own.join_classes": False,
    "converted.all_fields": False,
    "members": [],
    "tfds.version": OWN_NAMES.version,
    "tfds.val": OWN_NAMES.val,
}
"""Values of options that documents leave out."""


class _Split(NamedTuple):
    images: int
    """Number of images, or of rows of tables, including rejected ones."""
    shards: int
    files: Mapping[str, tuple[int, str]]
    """Bytes and digest of each original file that is known by name; the digest is empty if there is none."""
    listing: str
    """Digest of the list of originals; empty if it is not known."""


class _Facts(NamedTuple):
    """Facts that both plans and finished datasets contain."""

    options: Mapping[str, object]
    codecs: Mapping[str, str]
    splits: Mapping[str, _Split]
    classes: Sequence[str]
    features: Mapping[str, object]
    noun: str = "image"
    """Noun for the items of a split."""


def plan_differences(ours: Plan, theirs: Plan) -> str:
    """Describe in one sentence the differences between two plans."""
    return _sentence(_of_plan(ours), _of_plan(theirs))


def dataset_differences(ours: Plan, theirs: Manifest) -> str:
    """Describe in one sentence the differences between a plan and a finished dataset."""
    if "adopted" in theirs.options:
        return "adopted data"
    return _sentence(_of_plan(ours), _of_manifest(theirs))


def _of_plan(plan: Plan) -> _Facts:
    details = dict(plan.document()[plan.options.dataset]) if plan.details is not None else {}
    options = plan.options.document()
    if details:  # like a manifest, which lacks the options about images if these come from elsewhere
        options = {name: options[name] for name in ("dataset", "format", "splits", "own") if name in options}
        options |= {"rows": details["rows"]} | {name: details["tables"][name] for name in ("columns", "rows_per_shard")}
    splits = {}
    for split in plan.splits:
        samples, listing = split.shard_samples, "" if details else split.enumeration_sha256
        splits[split.name] = _Split(sum(samples), len(samples), _files(split.sources), listing)
    noun = "row" if details else "image"
    return _Facts(dict(_leaves(options)), plan.codecs, splits, plan.classes, plan.features, noun)


def _of_manifest(manifest: Manifest) -> _Facts:
    options = dict(manifest.options)
    for name in ("allow_networks", "consents"):
        options.pop(name, None)
    details = options.get(built_as(manifest))
    if isinstance(details, dict) and "rows" in details:  # of a table of URLs; "converted" is an option of that name
        del options[built_as(manifest)]
        options |= {name: details[name] for name in ("rows", "columns", "rows_per_shard") if name in details}
    splits = {}
    for split in manifest.splits:
        sources = [source for source in manifest.sources if source["split"] == split.name]
        listings = {str(source.get("enumeration_sha256", "")) for source in sources}
        images = sum(split.statuses.values()) or split.samples + sum(split.rejected.values())
        listing = listings.pop() if len(listings) == 1 else ""
        splits[split.name] = _Split(images, len(split.shards), _files(sources), listing)
    return _Facts(dict(_leaves(options)), manifest.codecs, splits, manifest.classes, manifest.features)


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
    """Return the field of a request that sets an option of plans and manifests."""
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
            what = "files in folders have together" if name == ALL_FILES else f"the original {shown} has"
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
