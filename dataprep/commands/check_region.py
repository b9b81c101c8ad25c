"""`dataprep check-region`: whether and how much reading a bucket from here costs, and how to avoid it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import click

from dataprep.arguments import READ, WHERE, Texts, command_of, function_of, option, request, spelled, spelled_document
from dataprep.cloud import cost as costs
from dataprep.cloud import region as regions
from dataprep.cloud.placement import Placement, bucket_name, is_bucket, nearer_copy, placement_of, this_machine
from dataprep.cloud.prices import Prices, fact, price_dates
from dataprep.cloud.tpu.command_lines import cache_command
from dataprep.commands import region_options
from dataprep.commands.progress import PYTHON, people
from dataprep.dataset.manifest import read_manifest
from dataprep.dataset.records import Manifest
from dataprep.dataset.replicas import Replica
from dataprep.errors import CredentialsError, DataprepError, FormatError, StorageError, UsageError
from dataprep.formats import FORMATS
from dataprep.messages import counted, first_line, printable, usd
from dataprep.storage import Storage, open_storage
from dataprep.storage.gcs_location import DEADLINES, LIST_CACHES, BucketLocation, StoredObject, stored_objects

if TYPE_CHECKING:
    from loaders.dataset import Dataset

EPILOG = """\b
Examples:
  dataprep check-region gs://bucket/imagenet
  dataprep check-region gs://bucket/imagenet --tpu my-v4-32 --epochs 90
  dataprep check-region gs://bucket/imagenet --zone us-central1-a --replicas
  dataprep check-region gs://bucket --zone us-central1-a --dataset-bytes 138GiB --epochs 90
  dataprep check-region gs://bucket --zone us-central1-a --bucket-location US --dataset-bytes 138GiB
  dataprep check-region gs://a gs://b --zone europe-west4-a --json | jq '.urls[].verdict'

\b
Exit codes: 0 co-located, free or cached, 1 the transfer from at least one bucket is charged (paid),
2 wrong usage or no such bucket, 3 undecided.
Prices and their date are in dataprep/data/*_prices.csv; rows item,of,where,usd of --prices FILE take precedence.
"""
_CODES = {regions.PAID: 1, regions.UNKNOWN: 3}
_INDEX_DEADLINE_S = 30.0
_OURS = ("index/", "_build/", "dataset.json", "replicas.json")


@dataclass(kw_only=True, slots=True)
class RegionReport:
    """Report about one URL; a cost is None if a fact is unknown, which the notes explain."""

    placement: Placement
    copy_of: str | None = None
    """The given URL if a copy of it is judged instead; None otherwise."""
    reading: costs.Reading | None = None
    one_pass: costs.Cost | None = None
    training: costs.Cost | None = None
    copy: costs.Offer | None = None
    """A new copy near the reader, read for one epoch and kept for a month."""
    copy_epochs: int | None = None
    """Number of epochs after which it is cheaper than remote reads, without its storage; None if it never is."""
    offers: list[costs.Offer] = field(default_factory=list)
    """Ways to read the data as often as the training does, if the present one is charged by the GiB."""
    cache_command: str | None = None
    """Command that adds a Rapid Cache in the reader's zone, if a cache is one of the ways."""
    readable: bool | None = None
    """Whether the first byte of a zonal bucket could be read; None if it was not tried."""
    replica: tuple[Replica, regions.Verdict] | None = None
    commands: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@request
class CheckRegion(region_options.Priced, region_options.NamedTpu):
    """Show where each bucket is, where it is read from, and what reading it costs.

    Reads the bucket's settings, its object listing and, for datasets, the manifest, part of the index and the list of
    copies; in a zonal bucket also the first byte of an object. With `bucket_location`, nothing is read, and prices are
    for class Standard, or for class Rapid if the location is a zone.
    """

    urls: Texts = option(
        "Buckets, or gs:// prefixes of datasets.", metavar="BUCKET_OR_URL...", kw_only=False, group=READ
    )
    zone: str | None = option(
        "Zone or region of the reader.", default=None, shown="this machine's, from its metadata server", group=WHERE
    )
    epochs: int = option("Epochs of the complete training run.", default=1, low=1)
    hosts: int | None = option(
        "Hosts that share the reading.",
        default=None,
        low=1,
        shown="1; without `zone` and `tpu`, the hosts of this machine's TPU",
        group=WHERE,
    )
    hosts_read_all: bool = option(
        "Assume that every host reads the complete dataset, not just its share.", default=False, group=WHERE
    )
    split: str | None = option("Split to read.", default=None, shown="train, otherwise the first", group=READ)
    dataset_bytes: int | str | None = option(
        "Size of the data to read; by default it is looked up.", default=None, size=True, group=READ
    )
    objects: int | None = option(
        "Number of objects that hold the data, such as loose pictures; each costs a request when it is read or copied.",
        default=None,
        low=1,
        metavar="N",
        shown="objects of 256 MiB",
        group=READ,
    )
    bucket_location: str | None = option(
        "Location of the buckets, instead of looking it up. No request is sent to Cloud Storage, and no credentials "
        "are needed.",
        default=None,
        metavar="PLACE",
        group=READ,
    )
    months: float = option(
        "Months for which a cache or copy would be kept.",
        default=1.0,
        low=0,
        high=region_options.MOST_MONTHS,
        rare=True,
    )
    replicas: bool = option(
        "Examine the copy that a loader would read instead, if there is a cheaper copy.", default=False, group=READ
    )

    @property
    def readings(self) -> int:
        """Number of times that all hosts together read the data of a pass."""
        return (self.hosts or 1) if self.hosts_read_all else 1

    def __post_init__(self) -> None:
        """Check the values, and that they go together."""
        super().__post_init__()
        if self.bucket_location is not None and self.replicas:
            raise UsageError("`replicas` reads the dataset's list of copies; leave `bucket_location` out")
        if self.objects is not None and self.dataset_bytes is None:
            raise UsageError("`objects` is the number of objects with `dataset_bytes` bytes together; give both")


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionCheck:
    """Result of `check_region`."""

    reader: str | None
    """Zone or region of the reader; None if it is not known."""
    asked: CheckRegion
    """The request, with the number of hosts that was found."""
    reports: tuple[RegionReport, ...]
    """A report for each URL."""
    notes: tuple[str, ...]
    """Notes on regions that dataprep does not know."""

    @property
    def verdict(self) -> str:
        """`paid` if reading one of the URLs is charged, else `unknown` if one is not known, else `free`."""
        verdicts = {report.placement.verdict.kind for report in self.reports}
        return regions.PAID if regions.PAID in verdicts else regions.UNKNOWN if regions.UNKNOWN in verdicts else "free"


def _checked(asked: CheckRegion, note: region_options.Note = PYTHON.note) -> RegionCheck:
    """Examine the URLs of a request."""
    located = None if asked.bucket_location is None else regions.parse_location(asked.bucket_location)
    named = () if located is None else regions.placement(located)[1]
    for line in regions.unknown_regions(named):
        note(line)
    prices, hosts = asked.table(), asked.hosts
    where = region_options.named_place(asked.zone, asked.tpu, note)
    machine = this_machine() if where is None else None
    if machine is not None:
        where, hosts = machine.zone, hosts or len(machine.hosts)
    asked = replace(asked, hosts=hosts or 1)
    reports = tuple(examine(url, where, asked, prices, located=located) for url in asked.urls)
    unknown = tuple(regions.unknown_regions(named if where is None else (*named, where)))
    return RegionCheck(reader=where, asked=asked, reports=reports, notes=unknown)


def _print(asked: CheckRegion, *, as_json: bool) -> int:
    found = _checked(asked, people(asked, quiet=as_json).note)
    if as_json:
        urls = [_json(each, found.notes) for each in found.reports]
        shown = ("epochs", "hosts", "hosts_read_all", "split", "months", "objects")
        training = {name: getattr(found.asked, name) for name in shown} | {"num_bytes": found.asked.dataset_bytes}
        document = {"reader": found.reader, "training": training, "urls": urls}
        dates = {name: read.isoformat() for name, read in price_dates().items()}
        click.echo(json.dumps({**spelled_document(CheckRegion, document), "prices_as_of": dates}))
    else:
        for report in found.reports:
            _print_report(report, found.asked)
        region_options.echo_stale_prices()
    return _CODES.get(found.verdict, 0)


def _json(report: RegionReport, unknown: Sequence[str]) -> dict[str, object]:
    found, reading, copy = report.placement.verdict, report.reading, report.copy
    return {
        "url": report.placement.url,
        "copy_of": report.copy_of,
        "verdict": found.kind,
        "usd_per_gib": found.usd_per_gib,
        "reason": found.reason,
        "bucket": None if report.placement.bucket is None else asdict(report.placement.bucket),
        "reading": None
        if reading is None
        else {**asdict(reading), "num_bytes": reading.num_bytes, "gets": reading.gets},
        "one_pass_usd": _cost(report.one_pass),
        "training_usd": _cost(report.training),
        "copy": None
        if copy is None
        else {"once": _cost(copy.once), "storage_per_month": copy.kept, "epochs": report.copy_epochs},
        "ways": [each.document() for each in report.offers],
        "cache_command": report.cache_command,
        "readable": report.readable,
        "replica": None if report.replica is None else {"url": report.replica[0].url, **asdict(report.replica[1])},
        "commands": report.commands,
        "notes": [*report.notes, *unknown],
    }


def _cost(cost: costs.Cost | None) -> dict[str, float] | None:
    return None if cost is None else {**asdict(cost), "total": cost.total}


def _print_report(report: RegionReport, asked: CheckRegion) -> None:
    placed, found = report.placement, report.placement.verdict
    price = f" at ${found.usd_per_gib:g} per GiB" if found.usd_per_gib else ""
    click.echo(placed.url)
    if placed.bucket is not None:
        storage_class = f", class {placed.bucket.storage_class}" if placed.bucket.storage_class else ""
        autoclass = ", autoclass" if placed.bucket.autoclass else ""
        hierarchy = ", hierarchical namespace" if placed.bucket.hierarchical else ""
        caches = f", Rapid Cache in {', '.join(placed.bucket.caches)}" if placed.bucket.caches else ""
        _line("bucket", f"{regions.describe(placed.bucket)}{storage_class}{autoclass}{hierarchy}{caches}")
    if report.copy_of is not None:
        _line("copy of", report.copy_of)
    _line("reader", placed.where or "not known: no metadata server; give `zone` or `tpu`")
    _line("verdict", f"{found.kind}{price}: {found.reason}")
    _print_costs(report, asked)
    _print_advice(report, asked)
    for note in report.notes:
        _line("note", note)


def _print_costs(report: RegionReport, asked: CheckRegion) -> None:
    reading = report.reading
    if reading is None:
        return
    _line("one pass", f"{costs.gib(reading.num_bytes)} in {reading.gets:,} requests: {_shown(report.one_pass)}")
    often = f"{asked.epochs:,} epoch{'s' if asked.epochs > 1 else ''}"
    often += f" of {reading.passes} passes" if reading.passes > 1 else ""
    often += f", all of it read by {asked.readings} hosts" if asked.readings > 1 else ""
    _line("training", f"{often}: {_shown(report.training)}")


def _print_advice(report: RegionReport, asked: CheckRegion) -> None:
    if report.replica is not None:
        replica, found = report.replica
        _line("do", f"read the copy at {replica.url}, as loaders do automatically: {found.kind}, {found.reason}")
    if report.copy is None:
        return
    epochs = report.copy_epochs
    pays = f"it pays off after {counted(epochs, 'epoch')}" if epochs else "it never pays off"
    is_cheaper = epochs is not None and asked.epochs >= epochs
    what = "copy it near the reader" if is_cheaper else "read it where it is; a copy near the reader"
    _line(
        "do", f"{what}: {usd(report.copy.once.total)} once, then {usd(report.copy.kept)} per month to keep it; {pays}"
    )
    region_options.echo_commands(CheckRegion, report.commands)
    for offer in report.offers:
        _line(offer.kind, offer.line(months=asked.months))
        if offer.kind == costs.CACHE and report.cache_command is not None:
            region_options.echo_commands(CheckRegion, [report.cache_command])


def _shown(cost: costs.Cost | None) -> str:
    if cost is None:
        return "unknown cost"
    return (
        f"{usd(cost.total)} ({usd(cost.transfer)} transfer, {usd(cost.retrieval)} retrieval, "
        f"{usd(cost.operations)} operations)"
    )


def _line(label: str, text: str) -> None:
    click.echo(f"  {label:<10}  {printable(spelled(CheckRegion, text))}")


# Examination of one URL


def examine(
    url: str, where: str | None, asked: CheckRegion, prices: Prices, *, located: BucketLocation | None = None
) -> RegionReport:
    """Examine one URL. Without credentials the verdict is UNKNOWN, unless the bucket's location is given.

    Args:
        url: URL of a bucket or of something in it, or only a bucket's name.
        where: The reader's zone or region; None if unknown.
        asked: The training, and whether to examine the copy that is cheapest to read instead, if there is one.
        located: Location of the bucket; None to look it up. If it is given, no request is sent to Cloud Storage.

    Raises:
        UsageError: The URL names no bucket.
        AccessError: The bucket does not exist.
    """
    storage = open_storage(url if is_bucket(url) or "/" in url or "://" in url else f"gs://{url}")
    if storage.is_local:
        raise UsageError(f"{url} is on a disk, and reading it costs nothing; give gs://bucket/prefix")
    if located is not None and not is_bucket(storage.url):
        raise UsageError(f"{url}: `bucket_location` is for gs:// buckets; leave it out")
    if located is None:
        placed = _placement(storage.url, where, prices)
    else:
        placed = Placement(storage.url, where, located, regions.verdict(located, where, prices))
    report = RegionReport(placement=placed)
    bucket, found, notes = placed.bucket, placed.verdict, report.notes
    if bucket is None:
        if found.usd_per_gib is not None and asked.dataset_bytes is not None:
            once = int(asked.dataset_bytes) * asked.readings / costs.GIB * found.usd_per_gib
            notes.append(
                f"one pass costs {usd(once)} without requests, {counted(asked.epochs, 'epoch')} "
                f"{usd(once * asked.epochs)}"
            )
        return report
    if asked.dataset_bytes is not None:
        report.reading = costs.given_reading(int(asked.dataset_bytes), bucket.storage_class, asked.objects)
    if located is None:
        _look_up(report, storage, bucket, asked, prices)
    elif report.reading is None:
        notes.append("no cost: the bucket's location is given, so nothing in it is looked up; give `dataset_bytes`")
    if report.reading is not None:
        _price(report, report.reading, bucket, asked, prices)
    if asked.replicas and report.replica is not None:
        chosen = examine(report.replica[0].url, where, replace(asked, replicas=False), prices)
        chosen.copy_of = storage.url
        return chosen
    return report


def _look_up(
    report: RegionReport, storage: Storage, bucket: BucketLocation, asked: CheckRegion, prices: Prices
) -> None:
    """Add what the bucket itself shows: notes on its place, the data to read, and a copy nearer to the reader."""
    notes = report.notes
    if bucket.missing_permission:
        notes.append(f"permission {bucket.missing_permission} is missing: storage class and autoclass are unknown")
    _describe_place(report, bucket, report.placement.where)
    try:
        manifest = read_manifest(storage)
    except DataprepError as error:
        manifest = None
        if report.reading is None:
            notes.append(str(error))
    if report.reading is None:
        report.reading = _reading(storage, manifest, asked, bucket.storage_class, notes)
    else:
        report.reading = replace(report.reading, is_dataset=manifest is not None)
    if report.reading is not None and report.placement.verdict.kind == regions.PAID:
        report.replica = nearer_copy(report.placement, prices, notes.append)


def _placement(url: str, where: str | None, prices: Prices) -> Placement:
    """Find the location of a bucket and judge it; the verdict is UNKNOWN if there are no credentials."""
    try:
        return placement_of(url, where, prices, every_cache=True)
    except CredentialsError as error:
        reason = f"it is not known where the bucket is: {error}; `bucket_location` needs no credentials"
        return Placement(url, where, None, regions.Verdict(regions.UNKNOWN, None, reason))


def _describe_place(report: RegionReport, bucket: BucketLocation, where: str | None) -> None:
    """Add notes on a zonal bucket, a reader in an AI zone, and caches that could not be listed."""
    notes, is_zonal = report.notes, regions.placement(bucket)[0] == regions.ZONE
    if is_zonal:
        report.readable = _try_reading(report.placement.url, notes)
    if where is None or not regions.is_zone(where):
        return
    if bucket.caches is None and regions.can_cache(bucket, where) is not False:
        notes.append(f"permission {LIST_CACHES} may be missing: it is not known whether {where} has a Rapid Cache")
    if regions.is_ai_zone(where) and where.lower() not in (bucket.caches or ()) and not is_zonal:
        notes.append(
            f"{where} is an AI zone, typically up to {fact('ai_zone_ms'):g} ms from the zones with the bucket's bytes; "
            f"a Rapid Cache in it serves repeated reads from inside"
        )


def _try_reading(url: str, notes: list[str]) -> bool | None:
    """Read the first byte of the first object of a zonal bucket, as loaders read."""
    from dataprep.storage.gcs import GCSStorage

    bucket, _, prefix = url.partition("://")[2].partition("/")
    try:
        first = next((each for each in stored_objects(bucket, prefix) if each.num_bytes), None)
        if first is None:
            notes.append("a zonal bucket without objects, so it is not known whether loaders can read it")
            return None
        GCSStorage(url, DEADLINES).read_range(first.name, 0, 1)
    except (DataprepError, OSError) as error:
        notes.append(
            f"a zonal bucket that dataprep cannot read: {first_line(error)}; use a regional bucket and a cache"
        )
        return False
    return True


def _price(
    report: RegionReport, reading: costs.Reading, bucket: BucketLocation, asked: CheckRegion, prices: Prices
) -> None:
    """Add the costs of a pass and of the training, and if reading is charged, of a new copy and of other ways."""
    report.notes.extend(reading.notes)
    report.one_pass = costs.reading_cost(reading.amounts, bucket, report.placement.verdict, prices)
    if report.one_pass is None:
        return
    of_epoch = reading.passes * asked.readings
    report.training = report.one_pass.times(of_epoch * asked.epochs)
    url, where = report.placement.url, report.placement.where
    is_paid = report.placement.verdict.kind == regions.PAID
    if where is None or not is_paid or (report.replica is not None and report.replica[1].is_free):
        return
    places = costs.Places(bucket=bucket, where=where, prices=prices, passes=of_epoch)
    epoch = {each.kind: each for each in costs.offers(reading, places)}
    if costs.COPY in epoch:
        report.copy = epoch[costs.COPY]
        report.copy_epochs = costs.epochs_to_pay(report.copy.once, far=epoch[costs.DIRECT].read, near=report.copy.read)
    report.offers = costs.offers(reading, replace(places, passes=of_epoch * asked.epochs, months=asked.months))
    report.notes.extend(costs.storage_notes(report.offers))
    if any(offer.kind == costs.CACHE for offer in report.offers):
        report.cache_command = " ".join(cache_command(bucket_name(url), where.lower()))
    once_usd = 0.0 if report.copy is None else report.copy.once.total
    report.commands = costs.copy_commands(url, where, reading, once_usd)


def _reading(
    storage: Storage, manifest: Manifest | None, asked: CheckRegion, default_class: str | None, notes: list[str]
) -> costs.Reading | None:
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
        return _dataset_reading(storage, manifest, asked, objects, notes)
    if not objects:
        notes.append("no cost: there are no objects")
        return None
    gets = Counter[str]()
    for each in objects:
        gets[each.storage_class] += -(-each.num_bytes // costs.READ_BYTES)
    amounts = tuple(replace(each, gets=gets[each.storage_class]) for each in costs.amounts_of(objects))
    return costs.Reading(amounts=amounts, is_dataset=False)


def _dataset_reading(
    storage: Storage, manifest: Manifest, asked: CheckRegion, objects: list[StoredObject], notes: list[str]
) -> costs.Reading:
    """Return a loader's pass over one split, divided among storage classes in proportion to the split's objects."""
    from loaders.dataset import open_dataset

    names = [split.name for split in manifest.splits]
    dataset = open_dataset(storage.url, asked.split or ("train" if "train" in names else names[0]), "off")
    try:
        total_gets, total_bytes = pass_traffic(dataset, world_size=1 if asked.hosts_read_all else asked.hosts or 1)
    except (FormatError, StorageError) as error:
        notes.append(f"requests are an estimate: {error}")
        total_gets, total_bytes = -(-dataset.split.num_bytes // costs.READ_BYTES), dataset.split.num_bytes
    files = {shard["file"] for shard in dataset.split.shards}
    own = [each for each in objects if each.name in files]
    own = own or [each for each in objects if not each.name.startswith(_OURS)] or objects
    listed = max(1, sum(each.num_bytes for each in own))
    amounts = []
    for each in costs.amounts_of(own):
        share = each.num_bytes / listed
        amounts.append(replace(each, num_bytes=round(total_bytes * share), gets=round(total_gets * share)))
    return costs.Reading(amounts=tuple(amounts), passes=dataset.passes, is_dataset=True)


def pass_traffic(dataset: Dataset, *, world_size: int = 1) -> tuple[int, int]:
    """Return the requests and bytes of all ranks together in one shuffled pass with the default settings; this reads
    one row group of the index.

    Args:
        world_size: Number of ranks; if it divides the number of streams, every byte is read once.
    """
    from loaders.order import NUM_STREAMS, samples_per_block

    split = dataset.split
    if FORMATS[dataset.manifest.format].one_file_per_image:
        return split.samples, split.num_bytes
    at_once = 1
    if dataset.manifest.shuffled:
        at_once = samples_per_block(split.samples, dataset.open_index(_INDEX_DEADLINE_S).mean_image_bytes())
    counts = [shard["samples"] for shard in split.shards]
    pieces = num_pieces(counts, at_once, NUM_STREAMS)
    readers = ranks_per_piece(world_size, split.samples / max(1.0, pieces), NUM_STREAMS)
    return round(pieces * readers), round(split.num_bytes * readers)


def num_pieces(shard_samples: list[int], at_once: int, num_streams: int) -> float:
    """Return the expected number of pieces: the blocks, and one more for each that two streams share."""
    samples = sum(shard_samples)
    blocks = sum(-(-count // at_once) for count in shard_samples)
    streams = min(num_streams, samples)
    return blocks + (streams - 1) * (1 - blocks / samples) if samples else 0.0


def ranks_per_piece(world_size: int, samples: float, num_streams: int) -> float:
    """Return the expected number of ranks that read a piece of some samples; 1 if the ranks divide the streams."""
    sharing = world_size // math.gcd(world_size, num_streams)
    without: float = (1 - 1 / sharing) ** samples
    return sharing * (1 - without)


check_region = function_of(CheckRegion, _checked, "check_region")
command = command_of(CheckRegion, _print, "check-region", epilog=EPILOG)
