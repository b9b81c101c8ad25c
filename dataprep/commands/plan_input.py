"""`dataprep plan-input`: whether the hosts of a TPU can feed it, what would change that, and what the reading costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dataprep.arguments import command_of, function_of, spelled, spelled_document
from dataprep.cloud.accelerators import zone_note
from dataprep.cloud.capacity import USABLE_SHARE, VCPU_SPEED, CapacityPlan, Resource, WhatIf
from dataprep.cloud.offers import gib, months_text
from dataprep.cloud.plan import (
    GIVEN,
    PACK,
    SCHEMA_VERSION,
    WHERE_FROM,
    BucketLoad,
    EnoughTpus,
    InputPlan,
    InputRequest,
    PricedPlaces,
    TrainingTime,
)
from dataprep.cloud.plan import plan_input as plan_input_of
from dataprep.cloud.region import placement, unknown_regions
from dataprep.commands.build_run import people
from dataprep.commands.progress import Viewer
from dataprep.commands.region_options import Note, echo_commands, echo_stale_prices
from dataprep.host.piped import open_console, print_table
from dataprep.messages import counted, human_bytes, usd

EPILOG = """\b
Examples:
  dataprep plan-input --accelerator v4-32 --images-per-s 32000
  dataprep plan-input --accelerator v3-256 --images-per-s 4096 --image-size 448 --dataset coco-dup5
  dataprep plan-input --accelerator v3-128 --images-per-s 44800 --loader torchvision
  dataprep plan-input --accelerator tpu7x-2x2x4 --images-per-s 60000 --measured bench.json --json | jq .plan.verdict
  dataprep plan-input --accelerator v6e-8 --images-per-s 6000 --epochs 90                  how many hours
  dataprep plan-input --accelerator all --images-per-s 32000                               which TPUs are enough
  dataprep plan-input --bucket-location US --zone us-central1-b --epochs 90                what the reading costs

Exit codes: 0 fed, listed, or priced, 1 input-bound, 2 usage or input, 3 undecided.
"""
_EXIT_CODES = {"fed": 0, "input-bound": 1, "unknown": 3}
_INTERPRETER_CORES = 16
"""Number of cores that one interpreter can keep busy (docs/loaders.md)."""


def _print(asked: InputRequest, *, as_json: bool) -> int:
    found = plan_input_of(asked)
    _note(found, people(asked, quiet=as_json).note)
    if as_json:
        document = found.document()
        if isinstance(found, PricedPlaces):
            document = {"schema_version": SCHEMA_VERSION, "places": document}
        click.echo(json.dumps(spelled_document(InputRequest, document)))
    elif isinstance(found, InputPlan):
        _print_plan(found)
    elif isinstance(found, EnoughTpus):
        _print_tpus(found)
    else:
        _print_places(open_console(), found)
        for line in _pack_lines(None, found):
            click.echo(line)
    return _exit_code(found)


def _planned(asked: InputRequest) -> InputPlan | EnoughTpus | PricedPlaces:
    """Return the plan for a request."""
    found = plan_input_of(asked)
    _note(found, Viewer(is_python=True).note)
    return found


plan_input = function_of(InputRequest, _planned, "plan_input")
command = command_of(InputRequest, _print, "plan-input", epilog=EPILOG)


def _exit_code(found: InputPlan | EnoughTpus | PricedPlaces) -> int:
    if isinstance(found, InputPlan):
        return _EXIT_CODES[found.plan.verdict]
    if isinstance(found, EnoughTpus):
        return 0 if any(row.accelerator for row in found.found) else _EXIT_CODES["input-bound"]
    return 0 if found.offers else _EXIT_CODES["unknown"]


def _note(found: InputPlan | EnoughTpus | PricedPlaces, note: Note) -> None:
    """Print notes on a TPU, and on regions that dataprep does not know."""
    if isinstance(found, EnoughTpus):
        return
    priced, zone = (found.places, found.request.zone) if isinstance(found, InputPlan) else (found, found.places.where)
    if isinstance(found, InputPlan):
        for line in (found.accelerator.note, zone_note(found.accelerator, zone) if zone else ""):
            if line:
                note(line)
    for line in unknown_regions([*([zone] if zone else []), *(placement(priced.places.bucket)[1] if priced else [])]):
        note(line)


# One TPU


def _print_plan(found: InputPlan) -> None:
    """Print a plan: verdict, facts, resources, the price of the reading, and what would change the rate."""
    console = open_console()
    console.print(Text(spelled(InputRequest, found.sentence), style="bold"))
    console.print()
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(found).items():
        facts.add_row(Text(f"  {name}", style="dim"), Text(value))
    print_table(console, facts)
    console.print()
    print_table(console, _resources(found.plan))
    console.print()
    if found.places is not None:
        _print_places(console, found.places)
        console.print()
    changes = [change for change in found.plan.what_ifs if _makes_a_difference(change, found.plan)]
    if changes:
        print_table(console, _what_ifs(found.plan, changes))
    else:
        console.print("What if: none of the changes that are known here makes a difference.")
    for change in changes:
        if change.command:
            console.print(Text(f"{change.name}: {change.command}"), soft_wrap=True)
    for line in _pack_lines(found.load, found.places):
        console.print(Text(line), soft_wrap=True)


def _facts(found: InputPlan) -> dict[str, str]:
    plan, cost, pod, request = found.plan, found.cost, found.pod, found.request
    machine, accelerator = found.accelerator.machine, found.accelerator
    rate = plan.images_per_s
    kind = "" if machine.machine_type == machine.generation else f" {machine.machine_type}"
    nic = f"{machine.nic_gbps:g} Gbit/s" if machine.nic_gbps else "network not published"
    facts = {"not counted": spelled(InputRequest, "; ".join(found.not_counted))} if found.not_counted else {}
    facts |= {
        "TPU": f"{accelerator.name}: {counted(accelerator.chips, 'chip')}, {counted(accelerator.cores, 'core')}, "
        f"{accelerator.hbm_gib:,} GiB of HBM",
        "hosts": f"{pod.hosts:,}{kind}, each {pod.vcpus:g} vCPUs, {machine.ram_gb:,} GB RAM, {nic}",
        "source": f"{machine.source}, {machine.date}" + (f"; {machine.note}" if machine.note else ""),
        "required": f"{plan.asked_images_per_s:,.0f} images/s at {request.image_size} pixels",
        "deliverable": f"{_sign(plan.tightest)}{rate:,.0f} images/s by all hosts, {rate / pod.hosts:,.0f} by each",
        "image": f"{cost.image.cpu_ms:.2f} ms of a host's core with {cost.image.loader}, "
        f"{human_bytes(cost.image.num_bytes)} from the bucket",
        "cores": f"{cost.processor or 'processor not known'}, each core counted as {cost.core_speed:g} of one that "
        f"takes {cost.image.cpu_ms * cost.core_speed:.2f} ms ({cost.source}); {cost.core_basis}",
        "counted": f"{USABLE_SHARE:.0%} of vCPUs and promised network; a vCPU, being a hyperthread, as "
        f"{VCPU_SPEED:g} of a host's core",
        "bucket": found.load.line,
    }
    if (request.dataset_bytes or request.images) and cost.bytes_source not in (GIVEN, cost.source):
        missing = "--dataset-bytes" if request.images else "--images"
        facts["assumed"] = (
            f"{human_bytes(cost.image.num_bytes)} an image, the {cost.bytes_source}: give {missing} as well"
        )
    if images := request.data.epoch_images:
        minutes = images / (plan.asked_images_per_s * plan.utilisation) / 60
        facts["epoch"] = f"{minutes:,.1f} min for the {images:,} images" + (
            "" if request.images else f" of {request.dataset}"
        )
    if found.training is not None:
        facts["training"] = _training(plan, found.training)
    cores = plan.resources[0].needed
    if request.loader == "dataprep" and cores > _INTERPRETER_CORES:
        processes = ceil(cores / VCPU_SPEED / 8)
        facts["loader"] = f"set processes={processes}: one interpreter hands out work for {_INTERPRETER_CORES} cores"
    return facts


def _training(plan: CapacityPlan, training: TrainingTime) -> str:
    """Return the time of the training, and how much of it is waiting."""
    tightest = plan.tightest
    text = f"{training.hours:,.1f} h for {counted(training.epochs, 'epoch')}, {training.chip_hours:,.1f} chip-hours"
    if plan.utilisation == 1:
        return f"{text}; no waiting for images"
    at_most = "at most " if tightest.at_least else ""
    return (
        f"{at_most}{text}; {training.waiting_hours:,.1f} h of them waiting for images, limited by the {tightest.name}"
    )


def _resources(plan: CapacityPlan) -> Table:
    table = _table("One host; the bucket is shared by all hosts", "", "needed", "available", "headroom")
    for resource in sorted(plan.resources, key=lambda resource: resource.headroom):
        sign = _sign(resource)
        table.add_row(
            resource.name,
            f"{resource.needed:,.2f} {resource.unit}",
            f"{sign}{resource.available:,.1f} {resource.unit}",
            Text(f"{sign}{resource.headroom:,.2f} x", style="red" if resource.headroom < 1 else "green"),
        )
    return table


def _what_ifs(plan: CapacityPlan, changes: Sequence[WhatIf]) -> Table:
    title = "What if (each change alone): images/s that the hosts could deliver"
    table = _table(title, "change", "images/s", "of required", "limit")
    tightest = plan.tightest
    table.add_row(
        "as it is", f"{_sign(tightest)}{plan.images_per_s:,.0f}", f"{plan.utilisation:.0%}", tightest.name, style="bold"
    )
    for change in changes:
        sign = "" if change.certain else "≥ "
        table.add_row(change.change, f"{sign}{change.images_per_s:,.0f}", f"{change.utilisation:.0%}", change.limit)
    return table


def _table(title: str, first: str, *numbers: str) -> Table:
    """Open a table with words in the first column, and numbers in the others."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _makes_a_difference(change: WhatIf, plan: CapacityPlan) -> bool:
    """Return whether the share of the required rate, as it is shown, differs from the present one."""
    return f"{change.utilisation:.0%}" != f"{plan.utilisation:.0%}"


def _sign(resource: Resource) -> str:
    """Return the sign before a rate or an amount that is a lower bound."""
    return "≥ " if resource.at_least else ""


# All TPUs


def _print_tpus(tpus: EnoughTpus) -> None:
    """Print the smallest TPU of each kind of host that delivers the rate."""
    console, request = open_console(), tpus.request
    title = f"Hosts for {tpus.images_per_s:,.0f} images/s of {request.image_size} pixels with {request.loader}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("smallest TPU", "hosts", "machine", "images/s each", "headroom", "limit"):
        justify: Any = "left" if name in ("smallest TPU", "machine", "limit") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    for row in tpus.found:
        if row.accelerator is not None and row.plan is not None:
            sign = "≥ " if row.at_least else ""
            table.add_row(
                row.accelerator.name,
                f"{row.accelerator.hosts:,}",
                row.machine.machine_type,
                f"{sign}{row.host_images_per_s:,.0f}",
                f"{sign}{row.plan.headroom:,.2f} x",
                row.plan.limit,
            )
    print_table(console, table)
    console.print()
    for row in tpus.found:
        if row.accelerator is None:
            console.print(Text(f"{row.machine.machine_type}: {row.reason}"))
    for each in dict.fromkeys(tpus.speeds.values()):
        names = ", ".join(name for name, found in tpus.speeds.items() if found == each)
        console.print(Text(f"cores of {names}: each counted as {each[0]:g} of one that measured; {each[1]}"))


# The price of the reading


def _print_places(console: Console, priced: PricedPlaces) -> None:
    """Print the ways to read the data, the commands that make a copy or a cache, and notes on the prices."""
    places = priced.places
    often = "once" if places.passes == 1 else f"{places.passes:,.0f} times"
    what = f"Reading {gib(priced.reading.num_bytes)} {often} in {places.where}"
    title = f"{what}: {priced.verdict.kind}, {priced.verdict.reason}"
    table = _table(title, "USD", "once", f"kept {months_text(places.months)}", "read", "requests", "sum")
    for offer in priced.offers:
        read = offer.read.transfer + offer.read.retrieval
        amounts = (offer.once.total + offer.ingest, offer.kept, read, offer.read.operations, offer.total)
        table.add_row(f"{WHERE_FROM[offer.kind]} {offer.place.lower()}", *map(usd, amounts))
    print_table(console, table)
    if priced.commands:
        click.echo("  do          copy it near the reader:")
        echo_commands(InputRequest, priced.commands)
    if priced.cache_command is not None:
        click.echo(f"  do          {'or ' if priced.commands else ''}read it through a Rapid Cache:")
        echo_commands(InputRequest, [priced.cache_command])
    for note in priced.notes:
        click.echo(f"note: {spelled(InputRequest, note)}")
    echo_stale_prices()


def _pack_lines(load: BucketLoad | None, places: PricedPlaces | None) -> list[str]:
    """Return the command that packs loose pictures if they take too many requests, and what it saves; else nothing."""
    saved = places.pack_line if places else ""
    is_needed = saved or (load and load.loose)
    return [*([saved] if saved else []), *([f"pack: {PACK}"] if is_needed else [])]
