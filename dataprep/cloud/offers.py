"""Ways to read the same data many times, each with its price: from the bucket, through a Rapid Cache, from a copy.

`offers` is pure: one pass over the data, places and prices in, rows in USD out. The first pass through a cache misses:
it costs as much as reading the bucket, plus the writes into the cache. The other passes are hits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil

from dataprep.cloud.cost import GIB, Amount, Cost, reading_cost
from dataprep.cloud.prices import ANYWHERE, Prices
from dataprep.cloud.region import CACHED, CO_LOCATED, RAPID_CACHE, UNKNOWN, Verdict, can_cache, region_of, verdict
from dataprep.messages import command_line, counted, shell_words, usd
from dataprep.storage.gcs_location import BucketLocation

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
        kept = f"{usd(self.kept)} to keep it for {months_text(months)}"
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
    found = verdict(plain, where, prices)
    once = reading_cost(amounts, plain, found, prices)
    if once is None:
        return []
    read = once.times(places.passes)
    result = [Offer(kind=DIRECT, place=plain.location, once=once.times(0), ingest=0.0, read=read, kept=0.0)]
    places = replace(places, bucket=plain)
    if cached := _cache(reading, places, once):
        result.append(cached)
    if found.kind not in (CO_LOCATED, UNKNOWN):
        result.append(_copy(reading, places, once))
    return result


def storage_notes(found: Iterable[Offer]) -> list[str]:
    """Return a note if the storage of a copy or a cache is priced as in another region."""
    regions = {region_of(offer.place) for offer in found if offer.kind in (CACHE, COPY)} - {STORAGE_REGION}
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
        most = ceil(once_usd * _PRICE_MARGIN)
        return [
            create,
            f"{replicate(max_usd=most)}     # if dataprep wrote the data; refused above ${most}",
            f"{copy}     # if not{unpriced}",
        ]
    return [create, replicate() if reading.is_dataset else copy]


def months_text(months: float) -> str:
    """Write a number of months as `1 month` or `2.5 months`."""
    return f"{months:g} month" if months == 1 else f"{months:g} months"


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
    prices, region = places.prices, region_of(places.where)
    beside = BucketLocation(location=region, location_type="region", storage_class="standard")
    standard = [replace(amount, storage_class="standard") for amount in reading.amounts]
    near = reading_cost(standard, beside, Verdict(CO_LOCATED, 0.0, ""), prices) or direct.times(0)
    # Each rewritten object is one operation of class A.
    rewrites = sum(amount.objects for amount in reading.amounts) / 1000
    operations = rewrites * (prices.find("class_a_per_1000", "standard", "region") or 0.0)
    stored = prices.find("storage_per_gib_month", "standard", "region") or 0.0
    return Offer(
        kind=COPY,
        place=region,
        once=replace(direct, operations=operations),
        ingest=0.0,
        read=near.times(places.passes),
        kept=stored * reading.num_bytes / GIB * places.months,
    )


def _cache(reading: Reading, places: Places, once: Cost) -> Offer | None:
    """Return the costs of reading through an empty cache in the reader's zone; None if there cannot be one."""
    bucket, where, prices = places.bucket, places.where, places.prices
    if can_cache(bucket, where) is False:
        return None
    hit = verdict(replace(bucket, caches=(where.lower(),)), where, prices)
    read = reading_cost(reading.amounts, bucket, hit, prices) if hit.kind == CACHED else None
    stored = prices.find("cache_storage_per_gib_hour", RAPID_CACHE, ANYWHERE)
    ingest = prices.find("cache_ingest_per_gib", RAPID_CACHE, ANYWHERE)
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
