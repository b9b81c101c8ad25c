"""`dataprep check-region`: whether reading a bucket from here costs money, how much, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from dataprep.arguments import StrictCommand
from dataprep.cloud.cost import Cost
from dataprep.cloud.machine import this_machine
from dataprep.cloud.prices import price_dates, published_prices, read_prices
from dataprep.cloud.region import PAID, UNKNOWN, describe, placement, unknown_regions
from dataprep.cloud.ways import CACHE
from dataprep.commands.options import COUNT, Bytes, json_option
from dataprep.commands.plan_places import parse_location
from dataprep.commands.region_options import months_option, named_place, objects_option, prices_option, tpu_option
from dataprep.commands.region_report import RegionReport, Training, examine, gib
from dataprep.commands.region_ways import echo_commands, echo_stale_prices, way_document, way_line
from dataprep.errors import UsageError
from dataprep.messages import printable, usd

EPILOG = """\b
Examples:
  dataprep check-region gs://bucket/imagenet
  dataprep check-region gs://bucket/imagenet --tpu my-v4-32 --epochs 90
  dataprep check-region gs://bucket/imagenet --zone us-central1-a --replicas
  dataprep check-region gs://bucket --zone us-central1-a --bytes 138GiB --epochs 90
  dataprep check-region gs://bucket --zone us-central1-a --bucket-location US --bytes 138GiB
  dataprep check-region gs://a gs://b --zone europe-west4-a --json | jq '.urls[].verdict'

\b
Exit codes: 0 co-located, free or cached, 1 the transfer from at least one bucket is charged (paid),
2 wrong usage or no such bucket, 3 undecided.
Prices and their date are in dataprep/data/*_prices.csv; rows item,of,where,usd of --prices FILE take precedence.
"""
_PAID_CODE, _UNKNOWN_CODE = 1, 3


@click.command("check-region", cls=StrictCommand, epilog=EPILOG)
@click.argument("urls", metavar="BUCKET_OR_URL...", nargs=-1, required=True)
@click.option("--zone", help="Zone or region of the reader.  [default: this machine's, from its metadata server]")
@tpu_option
@click.option("--epochs", type=COUNT, default=1, show_default=True, help="Epochs of the whole training.")
@click.option(
    "--hosts",
    type=COUNT,
    help="Hosts that share the reading.  [default: 1, or without --zone and --tpu those of this machine's TPU]",
)
@click.option(
    "--hosts-read-all", is_flag=True, help="Assume that every host reads the whole dataset, not just its share."
)
@click.option("--split", help="Split that is read.  [default: train, else the first]")
@click.option(
    "--bytes",
    "--dataset-bytes",
    "num_bytes",
    type=Bytes(),
    help="Size of the data that will be read, instead of looking it up.",
)
@objects_option
@click.option(
    "--bucket-location",
    metavar="PLACE",
    help="Location of the buckets, instead of looking it up: Cloud Storage gets no request, and no credentials are "
    "needed.",
)
@months_option
@click.option(
    "--replicas",
    is_flag=True,
    help="Examine the copy that a loader would read instead, if there is a cheaper one.",
)
@prices_option
@json_option
def command(
    urls: tuple[str, ...],
    zone: str | None,
    tpu: str | None,
    epochs: int,
    hosts: int | None,
    hosts_read_all: bool,
    split: str | None,
    num_bytes: int | None,
    objects: int | None,
    bucket_location: str | None,
    months: float,
    replicas: bool,
    prices_file: Path | None,
    as_json: bool,
) -> None:
    """Show where each bucket is, where it is read from, and what reading it costs.

    Of a bucket are read its settings, the listing of its objects, and of a dataset its manifest, part of its index
    and its list of copies; of a zonal bucket also the first byte of an object. With --bucket-location nothing is
    read, and prices are those of class Standard, for a zone of class Rapid.
    """
    if bucket_location is not None and replicas:
        raise UsageError("--replicas reads the dataset's list of copies; leave --bucket-location out")
    if objects is not None and num_bytes is None:
        raise UsageError("--objects is the number of objects of the data whose size --bytes gives; add --bytes")
    located = None if bucket_location is None else parse_location(bucket_location)
    prices = published_prices() if prices_file is None else read_prices(prices_file)
    where = named_place(zone, tpu)
    machine = this_machine() if where is None else None
    if machine is not None:
        where, hosts = machine.zone, hosts or len(machine.hosts)
    training = Training(
        epochs=epochs,
        hosts=hosts or 1,
        hosts_read_all=hosts_read_all,
        split=split,
        months=months,
        num_bytes=num_bytes,
        objects=objects,
    )
    named = () if located is None else placement(located)[1]
    unknown = unknown_regions(named if where is None else (*named, where))
    reports = [examine(url, where, training, prices, replicas=replicas, located=located) for url in urls]
    if as_json:
        found = {"reader": where, "training": asdict(training), "urls": [_json(each, unknown) for each in reports]}
        dates = {name: read.isoformat() for name, read in price_dates().items()}
        click.echo(json.dumps({**found, "prices_as_of": dates}))
    else:
        for report in reports:
            _print(report, training)
        echo_stale_prices()
    verdicts = {report.placement.verdict.kind for report in reports}
    code = _PAID_CODE if PAID in verdicts else _UNKNOWN_CODE if UNKNOWN in verdicts else 0
    click.get_current_context().exit(code)


def _json(report: RegionReport, unknown: list[str]) -> dict[str, object]:
    found, reading = report.placement.verdict, report.reading
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
        "copy": None if report.copy is None else {**asdict(report.copy), "once": _cost(report.copy.once)},
        "ways": [way_document(each) for each in report.ways],
        "cache_command": report.cache_command,
        "readable": report.readable,
        "replica": None if report.replica is None else {"url": report.replica[0].url, **asdict(report.replica[1])},
        "commands": report.commands,
        "notes": [*report.notes, *unknown],
    }


def _cost(cost: Cost | None) -> dict[str, float] | None:
    return None if cost is None else {**asdict(cost), "total": cost.total}


def _print(report: RegionReport, training: Training) -> None:
    placement, found = report.placement, report.placement.verdict
    price = f" at ${found.usd_per_gib:g} per GiB" if found.usd_per_gib else ""
    click.echo(placement.url)
    if placement.bucket is not None:
        storage_class = f", class {placement.bucket.storage_class}" if placement.bucket.storage_class else ""
        autoclass = ", autoclass" if placement.bucket.autoclass else ""
        hierarchy = ", hierarchical namespace" if placement.bucket.hierarchical else ""
        caches = f", Rapid Cache in {', '.join(placement.bucket.caches)}" if placement.bucket.caches else ""
        _line("bucket", f"{describe(placement.bucket)}{storage_class}{autoclass}{hierarchy}{caches}")
    if report.copy_of is not None:
        _line("copy of", report.copy_of)
    _line("reader", placement.where or "not known: no metadata server; give --zone or --tpu")
    _line("verdict", f"{found.kind}{price}: {found.reason}")
    _print_costs(report, training)
    _print_advice(report, training)
    for note in report.notes:
        _line("note", note)


def _print_costs(report: RegionReport, training: Training) -> None:
    reading = report.reading
    if reading is None:
        return
    _line("one pass", f"{gib(reading.num_bytes)} in {reading.gets:,} requests: {_shown(report.one_pass)}")
    often = f"{training.epochs:,} epoch{'s' if training.epochs > 1 else ''}"
    often += f" of {reading.passes} passes" if reading.passes > 1 else ""
    often += f", all of it read by {training.hosts} hosts" if training.hosts_read_all and training.hosts > 1 else ""
    _line("training", f"{often}: {_shown(report.training)}")


def _print_advice(report: RegionReport, training: Training) -> None:
    if report.replica is not None:
        replica, found = report.replica
        _line("do", f"read the copy at {replica.url}, as loaders do by themselves: {found.kind}, {found.reason}")
    if report.copy is None:
        return
    epochs = report.copy.epochs
    pays = f"it pays off after {epochs:,} epoch{'s' if epochs > 1 else ''}" if epochs else "it never pays off"
    _line(
        "do",
        f"copy it beside the reader: {usd(report.copy.once.total)} once, then "
        f"{usd(report.copy.storage_per_month)} a month to keep it; {pays}",
    )
    echo_commands(report.commands)
    for way in report.ways:
        _line(way.kind, way_line(way, months=training.months))
        if way.kind == CACHE and report.cache_command is not None:
            echo_commands([report.cache_command])


def _shown(cost: Cost | None) -> str:
    if cost is None:
        return "unknown cost"
    return (
        f"{usd(cost.total)} ({usd(cost.transfer)} transfer, {usd(cost.retrieval)} retrieval, "
        f"{usd(cost.operations)} operations)"
    )


def _line(label: str, text: str) -> None:
    click.echo(f"  {label:<10}  {printable(text)}")
