"""Collects what `dataprep check-region` prints about one URL: verdict, costs and advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dataprep.cloud.buckets import cache_command
from dataprep.cloud.cost import GIB, Amount, CopyCost, Cost, copy_cost, reading_cost
from dataprep.cloud.placement import Placement, bucket_name, is_bucket, nearer_copy, placement_of
from dataprep.cloud.prices import Prices
from dataprep.cloud.region import PAID, UNKNOWN, ZONE, Verdict, can_cache, is_ai_zone, is_zone, placement, verdict
from dataprep.cloud.tables import fact
from dataprep.cloud.ways import CACHE, Use, Way, ways
from dataprep.commands.region_ways import copy_commands, storage_notes
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import Manifest
from dataprep.dataset.replicas import Replica
from dataprep.errors import CredentialsError, DataprepError, FormatError, StorageError, UsageError
from dataprep.messages import counted, first_line
from dataprep.storage import Storage, open_storage
from dataprep.storage.gcs_location import DEADLINES, LIST_CACHES, BucketLocation, StoredObject, stored_objects

OBJECT_BYTES = 256 * 2**20
"""Assumed size of an object where only the size of the data is given: that of dataprep's shards."""
READ_BYTES = 2 * 2**20
"""Bytes of a request for data that are not a dataset of dataprep: the same as in the loaders."""
_OURS = ("index/", "_build/", "dataset.json", "replicas.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """The training run: how often, and by how many hosts, it reads the data."""

    epochs: int = 1
    hosts: int = 1
    hosts_read_all: bool = False
    """Whether every host reads all data instead of its share."""
    split: str | None = None
    months: float = 1.0
    """For how long a cache or a copy is kept."""
    num_bytes: int | None = None
    """Size of the data, if it is given and not looked up."""
    objects: int | None = None
    """Number of objects that these data are, if it is given; None for objects of OBJECT_BYTES."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One pass over the data."""

    amounts: tuple[Amount, ...]
    """Amounts that are read, by storage class."""
    passes: int
    """Number of passes in an epoch."""
    is_dataset: bool | None
    """Whether the data are a dataset of dataprep; None if nothing was looked up."""
    objects_are_assumed: bool = False
    """Whether the number of objects follows from OBJECT_BYTES."""

    @property
    def num_bytes(self) -> int:
        return sum(amount.num_bytes for amount in self.amounts)

    @property
    def gets(self) -> int:
        return sum(amount.gets for amount in self.amounts)

    @property
    def notes(self) -> list[str]:
        """Notes on what is assumed, for the user."""
        if not self.objects_are_assumed:
            return []
        return [
            f"requests and copies are priced for objects of {OBJECT_BYTES >> 20} MiB, as dataprep's shards, of which "
            f"{READ_BYTES >> 20} MiB are read at a time; for other data, such as loose pictures, give --objects N"
        ]


@dataclass(kw_only=True, slots=True)
class RegionReport:
    """Report about one URL; a cost is None if a fact is unknown, which the notes explain."""

    placement: Placement
    copy_of: str | None = None
    """The given URL if a copy of it is judged instead; None otherwise."""
    reading: Reading | None = None
    one_pass: Cost | None = None
    training: Cost | None = None
    copy: CopyCost | None = None
    ways: list[Way] = field(default_factory=list)
    """Ways to read the data as often as the training does, if the present one is charged by the GiB."""
    cache_command: str | None = None
    """Command that adds a Rapid Cache in the reader's zone, if that is one of the ways."""
    readable: bool | None = None
    """Whether the first byte of a zonal bucket could be read; None if it was not tried."""
    replica: tuple[Replica, Verdict] | None = None
    commands: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def examine(
    url: str,
    where: str | None,
    training: Training,
    prices: Prices,
    *,
    replicas: bool = False,
    located: BucketLocation | None = None,
) -> RegionReport:
    """Examine one URL. Without credentials the verdict is UNKNOWN, unless the bucket's location is given.

    Args:
        url: gs://bucket, gs://bucket/prefix, or only a bucket's name.
        where: The reader's zone or region; None if unknown.
        training: The training run.
        prices: Prices to apply.
        replicas: If a copy is cheaper to read, examine the cheapest copy instead.
        located: Location of the bucket; None to look it up. If it is given, no request is sent to Cloud Storage.

    Raises:
        UsageError: The URL names no bucket.
        AccessError: The bucket does not exist.
    """
    storage = open_storage(url if is_bucket(url) or "/" in url or "://" in url else f"gs://{url}")
    if storage.is_local:
        raise UsageError(f"{url} is on a disk, and reading it costs nothing; give gs://bucket/prefix")
    if located is not None:
        return _examine_given(Placement(storage.url, where, located, verdict(located, where, prices)), training, prices)
    report = RegionReport(placement=_placement(storage.url, where, prices))
    bucket, found = report.placement.bucket, report.placement.verdict
    if bucket is None:
        return report
    if bucket.missing_permission:
        report.notes.append(
            f"permission {bucket.missing_permission} is missing: storage class and autoclass are unknown"
        )
    _describe_place(report, where)
    manifest = _manifest(storage, report.notes if training.num_bytes is None else [])
    if training.num_bytes is None:
        report.reading = _reading(storage, manifest, training, bucket.storage_class, report.notes)
    else:
        given = given_reading(training.num_bytes, bucket.storage_class, training.objects)
        report.reading = replace(given, is_dataset=manifest is not None)
    if report.reading is not None and found.kind == PAID:
        report.replica = nearer_copy(report.placement, prices, report.notes.append)
    _price(report, training, prices)
    if replicas and report.replica is not None:
        chosen = examine(report.replica[0].url, where, training, prices)
        chosen.copy_of = storage.url
        return chosen
    return report


def given_reading(num_bytes: int, storage_class: str | None, objects: int | None = None) -> Reading:
    """Return one pass over data of a given size, in requests of at most READ_BYTES.

    Args:
        num_bytes: Size of the data.
        storage_class: Class of the objects; None for Standard.
        objects: Number of objects, all of one size; None for objects of OBJECT_BYTES.
    """
    amount = Amount(
        storage_class=(storage_class or "standard").lower(),
        num_bytes=num_bytes,
        objects=objects or -(-num_bytes // OBJECT_BYTES),
        gets=gets_of(num_bytes, objects) if objects else -(-num_bytes // READ_BYTES),
    )
    return Reading(amounts=(amount,), passes=1, is_dataset=None, objects_are_assumed=objects is None)


def gets_of(num_bytes: int, objects: int) -> int:
    """Return the requests that read objects of one size, at most READ_BYTES with each."""
    return objects * -(-num_bytes // (objects * READ_BYTES))


def _placement(url: str, where: str | None, prices: Prices) -> Placement:
    """Find the location of a bucket and judge it; the verdict is UNKNOWN if there are no credentials."""
    try:
        return placement_of(url, where, prices, every_cache=True)
    except CredentialsError as error:
        reason = f"it is not known where the bucket is: {error}; --bucket-location PLACE needs none"
        return Placement(url, where, None, Verdict(UNKNOWN, None, reason))


def _examine_given(found: Placement, training: Training, prices: Prices) -> RegionReport:
    """Examine a bucket whose location is given, without a request to Cloud Storage."""
    report = RegionReport(placement=found)
    if training.num_bytes is None:
        report.notes.append("no cost: nothing is looked up in a bucket whose location is given; give --bytes")
    else:
        storage_class = None if found.bucket is None else found.bucket.storage_class
        report.reading = given_reading(training.num_bytes, storage_class, training.objects)
    _price(report, training, prices)
    return report


def _describe_place(report: RegionReport, where: str | None) -> None:
    """Add notes on a zonal bucket, a reader in an AI zone, and caches that could not be listed."""
    bucket, notes = report.placement.bucket, report.notes
    if bucket is None:
        return
    if placement(bucket)[0] == ZONE:
        report.readable = _try_reading(report.placement.url, notes)
    if where is None or not is_zone(where):
        return
    if bucket.caches is None and can_cache(bucket, where) is not False:
        notes.append(f"permission {LIST_CACHES} may be missing: whether {where} has a Rapid Cache is not known")
    if is_ai_zone(where) and where.lower() not in (bucket.caches or ()) and placement(bucket)[0] != ZONE:
        notes.append(
            f"{where} is an AI zone, typically up to {fact('ai_zone_ms'):g} ms from the zones with the bucket's bytes; "
            f"a Rapid Cache in it serves repeated reads from inside"
        )


def _try_reading(url: str, notes: list[str]) -> bool | None:
    """Read the first byte of the first object of a zonal bucket, in the way in which loaders read."""
    from dataprep.storage.gcs import GCSStorage

    bucket, _, prefix = url.partition("://")[2].partition("/")
    try:
        first = next((each for each in stored_objects(bucket, prefix) if each.num_bytes), None)
        if first is None:
            notes.append("a zonal bucket: it has no object with which to try whether loaders can read it")
            return None
        GCSStorage(url, DEADLINES).read_range(first.name, 0, 1)
    except (DataprepError, OSError) as error:
        notes.append(
            f"a zonal bucket, and dataprep cannot read it: {first_line(error)}; use a regional bucket and a cache"
        )
        return False
    return True


def _price(report: RegionReport, training: Training, prices: Prices) -> None:
    """Add the costs of a pass and of the training, and what to do about them."""
    bucket, reading, found = report.placement.bucket, report.reading, report.placement.verdict
    if bucket is None or reading is None:
        return
    report.notes.extend(reading.notes)
    report.one_pass = reading_cost(reading.amounts, bucket, found, prices)
    if report.one_pass is not None:
        readers = training.hosts if training.hosts_read_all else 1
        report.training = report.one_pass.times(reading.passes * training.epochs * readers)
    if found.kind == PAID and (report.replica is None or not report.replica[1].is_free):
        _advise(report, training, prices)


def _advise(report: RegionReport, training: Training, prices: Prices) -> None:
    """Add the cost of a new copy to a report, and of the other ways to read the data."""
    bucket, reading, where = report.placement.bucket, report.reading, report.placement.where
    if bucket is None or reading is None or where is None or report.one_pass is None:
        return
    url = report.placement.url
    readers = training.hosts if training.hosts_read_all else 1
    epoch = report.one_pass.times(reading.passes * readers)
    report.copy = copy_cost(reading.amounts, bucket, where, epoch, report.placement.verdict, prices)
    use = Use(passes=reading.passes * training.epochs * readers, months=training.months)
    report.ways = ways(reading.amounts, bucket, where, prices, use)
    report.notes.extend(storage_notes(report.ways))
    if any(way.kind == CACHE for way in report.ways):
        report.cache_command = " ".join(cache_command(bucket_name(url), where.lower()))
    once_usd = 0.0 if report.copy is None else report.copy.once.total
    report.commands = copy_commands(
        url, where, is_dataset=reading.is_dataset, once_usd=once_usd, as_shards=reading.objects_are_assumed
    )


def _manifest(storage: Storage, notes: list[str]) -> Manifest | None:
    try:
        return read_manifest(storage)
    except DataprepError as error:
        notes.append(str(error))
        return None


def _reading(
    storage: Storage, manifest: Manifest | None, training: Training, default_class: str | None, notes: list[str]
) -> Reading | None:
    """Return the data that one pass reads; None if their amount is unknown."""
    bucket, _, prefix = storage.url.partition("://")[2].partition("/")
    if manifest is None and not prefix:
        notes.append("no cost: name a dataset or a prefix of the bucket")
        return None
    try:
        objects = list(stored_objects(bucket, prefix))
    except StorageError as error:
        notes.append(f"storage classes are unknown, assumed to be {default_class or 'STANDARD'}: {error}")
        objects = []
    if manifest is not None:
        objects = objects or [StoredObject("", 1, (default_class or "standard").lower())]
        return _dataset_reading(storage, manifest, training, objects, notes)
    if not objects:
        notes.append("no cost: there are no objects")
        return None
    gets = Counter[str]()
    for each in objects:
        gets[each.storage_class] += -(-each.num_bytes // READ_BYTES)
    return Reading(amounts=_amounts(objects, gets), passes=1, is_dataset=False)


def _dataset_reading(
    storage: Storage, manifest: Manifest, training: Training, objects: list[StoredObject], notes: list[str]
) -> Reading:
    """Return a loader's pass over one split, divided among storage classes in proportion to the split's objects."""
    from loaders.capacity.traffic import PassTraffic, pass_traffic
    from loaders.dataset import open_dataset

    names = [split.name for split in manifest.splits]
    dataset = open_dataset(storage.url, training.split or ("train" if "train" in names else names[0]), "off")
    try:
        total = pass_traffic(dataset, world_size=1 if training.hosts_read_all else training.hosts)
    except (FormatError, StorageError) as error:
        notes.append(f"requests are an estimate: {error}")
        total = PassTraffic(-(-dataset.split.num_bytes // READ_BYTES), dataset.split.num_bytes)
    files = {shard["file"] for shard in dataset.split.shards}
    own = [each for each in objects if each.name in files]
    own = own or [each for each in objects if not each.name.startswith(_OURS)] or objects
    listed = max(1, sum(each.num_bytes for each in own))
    amounts = []
    for storage_class in sorted({each.storage_class for each in own}):
        of_class = [each for each in own if each.storage_class == storage_class]
        share = sum(each.num_bytes for each in of_class) / listed
        amounts.append(
            Amount(
                storage_class=storage_class,
                num_bytes=round(total.num_bytes * share),
                objects=len(of_class),
                gets=round(total.gets * share),
            )
        )
    return Reading(amounts=tuple(amounts), passes=dataset.passes, is_dataset=True)


def _amounts(objects: list[StoredObject], gets: Mapping[str, int]) -> tuple[Amount, ...]:
    num_bytes, counts = Counter[str](), Counter[str]()
    for each in objects:
        num_bytes[each.storage_class] += each.num_bytes
        counts[each.storage_class] += 1
    return tuple(
        Amount(storage_class=name, num_bytes=num_bytes[name], objects=counts[name], gets=gets[name])
        for name in sorted(counts)
    )


def gib(num_bytes: float) -> str:
    """Write bytes in GiB of 2^30 bytes, the unit in which Cloud Storage bills; small ones in MiB, KiB or bytes."""
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= 0.1 * size:
            return f"{num_bytes / size:,.2f} {unit}"
    return counted(round(num_bytes), "byte")
