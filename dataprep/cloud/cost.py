"""Costs of reading, writing and copying data in USD, and ways to read the same data many times.

Pure: amounts, places and prices in, costs out. The ways are reading the bucket, a Rapid Cache, and a copy. The first
pass through a cache misses: it costs as much as reading the bucket, plus the writes into the cache. The other passes
are hits.

1 GiB is 2^30 bytes, as Cloud Storage bills. Operations of class A are inserts, listings and copies; operations of class
B are reads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from dataprep.cloud import region
from dataprep.cloud.prices import ANYWHERE, Prices, fact
from dataprep.messages import command_line, counted, shell_words, usd
from dataprep.storage.gcs_location import BucketLocation, StoredObject

GIB = 2**30
_STANDARD = "standard"
HOURS_PER_MONTH = 730
DIRECT, CACHE, COPY = "direct", "cache", "copy"
STORAGE_REGION = "us-central1"
"""Region whose published price of storage, in buckets and caches, is used everywhere."""
OBJECT_BYTES = 256 * 2**20
"""Assumed size of an object if only the size of the data is given: a shard of dataprep."""
READ_BYTES = 2 * 2**20
"""Bytes of a request for data that are not a dataset of dataprep: the same as in the loaders."""
_NEW_BUCKET = "gs://NEW-BUCKET"
_PRICE_MARGIN = 1.1
"""Factor for `max_usd`: a dataset has an index, and perhaps other splits, next to the data that were priced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """Objects of one storage class, and the operations on them."""

    storage_class: str
    num_bytes: int
    """Number of bytes that are read or copied, each time counted."""
    objects: int
    gets: int
    """Number of requests of class B."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Parts of a cost, in USD."""

    transfer: float
    retrieval: float
    operations: float

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.transfer + self.retrieval + self.operations

    def times(self, count: float) -> Cost:
        """Return the cost of doing the same `count` times."""
        return Cost(
            transfer=count * self.transfer, retrieval=count * self.retrieval, operations=count * self.operations
        )


def reading_cost(
    amounts: Sequence[Amount], bucket: BucketLocation, found: region.Verdict, prices: Prices
) -> Cost | None:
    """Return the cost of reading the amounts once; None if the price of the transfer is unknown.

    If the verdict is CACHED, all of it is read from the cache, which already holds it.
    """
    if found.usd_per_gib is None:
        return None
    transfer = found.usd_per_gib * sum(amount.num_bytes for amount in amounts) / GIB
    if found.kind == region.CACHED:
        thousands = sum(amount.gets for amount in amounts) / 1000
        usd_per_1000 = prices.find("cache_operations_per_1000", region.RAPID_CACHE, ANYWHERE) or 0.0
        return Cost(transfer=transfer, retrieval=0.0, operations=thousands * usd_per_1000)
    retrieval = sum(_retrieval(amount, bucket, prices) for amount in amounts)
    gets = sum(
        amount.gets / 1000 * _operation("class_b_per_1000", amount.storage_class, bucket, prices) for amount in amounts
    )
    return Cost(transfer=transfer, retrieval=retrieval, operations=gets)


def writing_cost(inserts: int, gets: int, bucket: BucketLocation, num_bytes: int, prices: Prices) -> Cost:
    """Return the cost of writing a build's output: requests, and replication in a bucket with several regions."""
    storage_class, kind = _billed_class(bucket.storage_class or _STANDARD, bucket), _kind(bucket)
    operations = inserts / 1000 * _operation("class_a_per_1000", storage_class, bucket, prices)
    operations += gets / 1000 * _operation("class_b_per_1000", storage_class, bucket, prices)
    regions = region.placement(bucket)[1]
    area = region.area_of(regions[0] if regions else bucket.location) or ""
    written = prices.find("replication_per_gib", area, kind) or 0.0
    written += prices.find("write_per_gib", storage_class, kind) or 0.0
    return Cost(transfer=written * num_bytes / GIB, retrieval=0.0, operations=operations)


def epochs_to_pay(once: Cost, *, far: Cost, near: Cost) -> int | None:
    """Return the number of epochs after which a copy is cheaper than remote reads; None if it never is.

    Storage of the copy is not counted.

    Args:
        once: Cost of making the copy.
        far: Cost of one epoch, read from the original.
        near: Cost of one epoch, read from the copy.
    """
    saved = far.total - near.total
    return max(1, math.ceil(once.total / saved)) if saved > 0 else None


def _retrieval(amount: Amount, bucket: BucketLocation, prices: Prices) -> float:
    if bucket.autoclass:
        return 0.0
    return amount.num_bytes / GIB * (prices.find("retrieval_per_gib", amount.storage_class, _kind(bucket)) or 0.0)


def _operation(item: str, storage_class: str, bucket: BucketLocation, prices: Prices) -> float:
    """Return the price of a thousand operations; with a hierarchical namespace they cost more."""
    usd = prices.find(item, _billed_class(storage_class, bucket), _kind(bucket)) or 0.0
    return usd * fact("hns_operations_factor") if bucket.hierarchical and _kind(bucket) != region.ZONE else usd


def _billed_class(storage_class: str, bucket: BucketLocation) -> str:
    """Return the class by which operations are billed: with Autoclass always Standard."""
    return _STANDARD if bucket.autoclass else storage_class.lower()


def _kind(bucket: BucketLocation) -> str:
    return region.placement(bucket)[0] or "region"


def copy_verdict(source: BucketLocation, target: BucketLocation, prices: Prices) -> region.Verdict:
    """Return the transfer price of a copy from one bucket to another.

    A copy out of a dual-region is billed even into one of its own regions. If a bucket has several regions, the most
    expensive pair of regions counts.
    """
    (kind, regions), (_, target_regions) = region.placement(source), region.placement(target)
    shown = f"from {region.describe(source)} to {region.describe(target)}"
    if source.location.lower() == target.location.lower() and (kind, regions) == region.placement(target):
        return region.Verdict(region.CO_LOCATED, 0.0, f"{shown}: the same location")
    starts = [source]
    if kind != region.MULTI_REGION and regions:
        starts = [BucketLocation(location=each, location_type="region") for each in regions]
    ends = target_regions or (target.location,)
    found = [region.verdict(start, end, prices) for start in starts for end in ends]
    unknown = next((each for each in found if each.usd_per_gib is None), None)
    if unknown is not None:
        return unknown
    price = max(each.usd_per_gib or 0.0 for each in found)
    return region.Verdict(region.PAID if price else region.CO_LOCATED, price, shown)


def amounts_of(objects: Iterable[StoredObject]) -> list[Amount]:
    """Sum up objects by their storage class; requests to read them are not counted."""
    num_bytes, counts = Counter[str](), Counter[str]()
    for each in objects:
        num_bytes[each.storage_class] += each.num_bytes
        counts[each.storage_class] += 1
    return [
        Amount(storage_class=name, num_bytes=num_bytes[name], objects=count, gets=0)
        for name, count in sorted(counts.items())
    ]


def copying_cost(
    amounts: Sequence[Amount], source: BucketLocation, target: BucketLocation, prices: Prices
) -> Cost | None:
    """Return the cost of the source's transfer and retrieval and the target's writes; None if a price is unknown."""
    read = reading_cost(amounts, source, copy_verdict(source, target, prices), prices)
    if read is None:
        return None
    objects, num_bytes = sum(each.objects for each in amounts), sum(each.num_bytes for each in amounts)
    written = writing_cost(objects, 0, target, num_bytes, prices)
    return Cost(
        transfer=read.transfer + written.transfer,
        retrieval=read.retrieval,
        operations=read.operations + written.operations,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One pass over the data."""

    amounts: tuple[Amount, ...]
    """Amounts that are read, by storage class."""
    passes: int = 1
    """Number of passes in an epoch."""
    is_dataset: bool | None = None
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
        """Assumptions, as notes for the user."""
        if not self.objects_are_assumed:
            return []
        return [
            f"requests and copies are priced for objects of {OBJECT_BYTES >> 20} MiB, like dataprep's shards, read "
            f"{READ_BYTES >> 20} MiB at a time; for other data, such as loose pictures, give `objects`"
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Locations of the data and the reader, number of passes, and prices."""

    bucket: BucketLocation
    where: str
    """The reader's zone or region."""
    prices: Prices
    passes: float = 1.0
    """Number of passes over the data."""
    months: float = 1.0
    """For how long a cache or a copy is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One way to read the data, with its costs in USD."""

    kind: str
    """One of DIRECT, CACHE and COPY."""
    place: str
    """Location of the bucket, zone of the cache, or region of the copy."""
    once: Cost
    """Cost of making the copy; or of the first pass through a cache, which reads the bucket and fills the cache."""
    ingest: float
    """Cost of writing the data into the cache."""
    read: Cost
    """Cost of all passes; with a cache, of all but the first."""
    kept: float
    """Cost of storing the copy or the cache's content; the original is not counted."""

    @property
    def total(self) -> float:
        return self.once.total + self.ingest + self.read.total + self.kept

    def line(self, *, months: float) -> str:
        """Describe the offer in one line, the sum first."""
        kept = f"{usd(self.kept)} to keep it for {months:g} month{'' if months == 1 else 's'}"
        read = f"{usd(self.read.transfer + self.read.retrieval)} to read, {usd(self.read.operations)} for requests"
        if self.kind == CACHE:
            return (
                f"a Rapid Cache in {self.place}: at most {usd(self.total)} ({usd(self.once.total)} for the first "
                f"reading, {usd(self.ingest)} to write it into the cache, {kept}, then {read})"
            )
        if self.kind == COPY:
            return f"a copy in {self.place}: {usd(self.total)} ({usd(self.once.total)} to make it, {kept}, {read})"
        return f"from {self.place.lower()}: {usd(self.total)} ({read})"

    def document(self) -> dict[str, object]:
        """Return the costs as JSON values."""
        once, read = ({**asdict(cost), "total": cost.total} for cost in (self.once, self.read))
        return {**asdict(self), "once": once, "read": read, "total": self.total}


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
    return Reading(amounts=(amount,), objects_are_assumed=objects is None)


def gets_of(num_bytes: int, objects: int) -> int:
    """Return the requests that read objects of one size, at most READ_BYTES with each."""
    return objects * -(-num_bytes // (objects * READ_BYTES))


def is_loose(num_bytes: float, objects: int) -> bool:
    """Return whether objects are smaller than a read of the loader, as loose pictures are."""
    return num_bytes / objects < READ_BYTES


def offers(reading: Reading, places: Places) -> list[Offer]:
    """Return the ways to read the data whose prices are known, the present one first."""
    amounts, where, prices = reading.amounts, places.where, places.prices
    plain = replace(places.bucket, caches=None)
    found = region.verdict(plain, where, prices)
    once = reading_cost(amounts, plain, found, prices)
    if once is None:
        return []
    read = once.times(places.passes)
    result = [Offer(kind=DIRECT, place=plain.location, once=once.times(0), ingest=0.0, read=read, kept=0.0)]
    places = replace(places, bucket=plain)
    if cached := _cache(reading, places, once):
        result.append(cached)
    if found.kind not in (region.CO_LOCATED, region.UNKNOWN):
        result.append(_copy(reading, places, once))
    return result


def storage_notes(found: Iterable[Offer]) -> list[str]:
    """Return a note if the storage of a copy or a cache is priced as in another region."""
    regions = {region.region_of(offer.place) for offer in found if offer.kind in (CACHE, COPY)} - {STORAGE_REGION}
    return [f"storage in {each} is priced as in {STORAGE_REGION}" for each in sorted(regions)]


def copy_commands(url: str, where: str, reading: Reading, once_usd: float) -> list[str]:
    """Return the commands that copy data into a new bucket in the reader's region.

    If it is not known whether the data are a dataset of dataprep, both ways to copy them are returned, each with a
    comment.

    Args:
        url: The data, in a bucket.
        where: The reader's zone or region.
        reading: One pass over the data.
        once_usd: Price of the copying.
    """
    path = "".join(url.partition("://")[2].partition("/")[1:])
    create = command_line("create-bucket", _NEW_BUCKET, near=where)
    replicate = partial(command_line, "replicate", url, to=_NEW_BUCKET + path.rstrip("/"))
    copy = f"gcloud storage cp -r {shell_words(url)} {_NEW_BUCKET}/"
    if reading.is_dataset is None:
        unpriced = "; `objects` makes its price exact" if reading.objects_are_assumed else ""
        most = math.ceil(once_usd * _PRICE_MARGIN)
        return [
            create,
            f"{replicate(max_usd=most)}     # if dataprep wrote the data; refused above ${most}",
            f"{copy}     # if not{unpriced}",
        ]
    return [create, replicate() if reading.is_dataset else copy]


def gib(num_bytes: float) -> str:
    """Write bytes in GiB of 2^30 bytes, Cloud Storage's unit for bills; small numbers in MiB, KiB or bytes."""
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= 0.1 * size:
            return f"{num_bytes / size:,.2f} {unit}"
    return counted(round(num_bytes), "byte")


def _copy(reading: Reading, places: Places, direct: Cost) -> Offer:
    """Return the offer to copy the data server-side to a Standard bucket in the reader's region, and read it there.

    Args:
        reading: One pass over the data. Copying reads it once as well.
        places: The bucket and the reader.
        direct: Cost of one pass over the bucket.
    """
    prices, here = places.prices, region.region_of(places.where)
    beside = BucketLocation(location=here, location_type="region", storage_class="standard")
    standard = [replace(amount, storage_class="standard") for amount in reading.amounts]
    near = reading_cost(standard, beside, region.Verdict(region.CO_LOCATED, 0.0, ""), prices) or direct.times(0)
    # Each rewritten object is one operation of class A.
    rewrites = sum(amount.objects for amount in reading.amounts) / 1000
    operations = rewrites * (prices.find("class_a_per_1000", "standard", "region") or 0.0)
    stored = prices.find("storage_per_gib_month", "standard", "region") or 0.0
    return Offer(
        kind=COPY,
        place=here,
        once=replace(direct, operations=operations),
        ingest=0.0,
        read=near.times(places.passes),
        kept=stored * reading.num_bytes / GIB * places.months,
    )


def _cache(reading: Reading, places: Places, once: Cost) -> Offer | None:
    """Return the costs of reading through an empty cache in the reader's zone; None if there cannot be one."""
    bucket, where, prices = places.bucket, places.where, places.prices
    if region.can_cache(bucket, where) is False:
        return None
    hit = region.verdict(replace(bucket, caches=(where.lower(),)), where, prices)
    read = reading_cost(reading.amounts, bucket, hit, prices) if hit.kind == region.CACHED else None
    stored = prices.find("cache_storage_per_gib_hour", region.RAPID_CACHE, ANYWHERE)
    ingest = prices.find("cache_ingest_per_gib", region.RAPID_CACHE, ANYWHERE)
    if read is None or stored is None or ingest is None:
        return None
    size = reading.num_bytes / GIB
    return Offer(
        kind=CACHE,
        place=where.lower(),
        once=once,
        ingest=ingest * size,
        read=read.times(max(0.0, places.passes - 1)),
        kept=stored * HOURS_PER_MONTH * places.months * size,
    )
