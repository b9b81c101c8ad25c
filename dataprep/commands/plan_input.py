"""`dataprep plan-input`: whether the hosts of a TPU can feed it, and what would change that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from dataprep.arguments import command_of, function_of, spelled, spelled_document
from dataprep.cloud.capacity import USABLE_SHARE, VCPU_SPEED, CapacityPlan, Resource, WhatIf
from dataprep.cloud.plan import GIVEN, PACK, EnoughTpus, InputPlan, InputRequest, TrainingTime
from dataprep.cloud.plan import plan_input as plan_input_of
from dataprep.commands.build_run import people
from dataprep.commands.progress import PYTHON, Viewer
from dataprep.host.piped import open_console, print_table
from dataprep.messages import counted, human_bytes

EPILOG = """\b
Examples:
  dataprep plan-input --accelerator v4-32 --images-per-s 32000
  dataprep plan-input --accelerator v3-256 --images-per-s 4096 --image-size 448 --dataset coco-dup5
  dataprep plan-input --accelerator v3-128 --images-per-s 44800 --loader torchvision
  dataprep plan-input --accelerator tpu7x-2x2x4 --images-per-s 60000 --measured bench.json --json | jq .plan.verdict
  dataprep plan-input --accelerator v6e-8 --images-per-s 6000 --epochs 90                  how many hours
  dataprep plan-input --accelerator all --images-per-s 32000                               which TPUs are enough

Exit codes: 0 fed or listed, 1 input-bound, 2 wrong usage or input, 3 undecided.
"""
_EXIT_CODES = {"fed": 0, "input-bound": 1, "unknown": 3}
_INTERPRETER_CORES = 16
"""Number of cores that one interpreter can keep busy (docs/loaders.md)."""


def _print(asked: InputRequest, *, as_json: bool) -> int:
    found = _planned(asked, people(asked, quiet=as_json))
    if as_json:
        click.echo(json.dumps(spelled_document(InputRequest, found.document())))
    elif isinstance(found, InputPlan):
        _print_plan(found)
    else:
        _print_tpus(found)
    if isinstance(found, InputPlan):
        return _EXIT_CODES[found.plan.verdict]
    return 0 if any(row.accelerator for row in found.found) else _EXIT_CODES["input-bound"]


def _planned(asked: InputRequest, viewer: Viewer = PYTHON) -> InputPlan | EnoughTpus:
    """Return the plan for a request."""
    found = plan_input_of(asked)
    if isinstance(found, InputPlan) and found.accelerator.note:
        viewer.note(found.accelerator.note)
    return found


plan_input = function_of(InputRequest, _planned, "plan_input")
command = command_of(InputRequest, _print, "plan-input", epilog=EPILOG)


# One TPU


def _print_plan(found: InputPlan) -> None:
    """Print a plan: verdict, facts, resources, and what would change the rate."""
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
    share = f"{found.plan.utilisation:.0%}"  # a change that leaves the share, as it is shown, makes no difference
    changes = [change for change in found.plan.what_ifs if f"{change.utilisation:.0%}" != share]
    if changes:
        print_table(console, _what_ifs(found.plan, changes))
    else:
        console.print("What if: no known change makes a difference.")
    for change in changes:
        if change.command:
            console.print(Text(f"{change.name}: {change.command}"), soft_wrap=True)
    if found.load.loose:
        console.print(Text(f"pack: {PACK}"), soft_wrap=True)


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
        "deliverable": f"{_sign(plan.tightest)}{rate:,.0f} images/s from all hosts, {rate / pod.hosts:,.0f} from each",
        "image": f"{cost.image.cpu_ms:.2f} ms of a host's core with {cost.image.loader}, "
        f"{human_bytes(cost.image.num_bytes)} from the bucket",
        "cores": f"{cost.processor or 'processor not known'}, each core counted as {cost.core_speed:g} of a core that "
        f"takes {cost.image.cpu_ms * cost.core_speed:.2f} ms ({cost.source}); {cost.core_basis}",
        "counted": f"{USABLE_SHARE:.0%} of the vCPUs and promised network; a vCPU is a hyperthread, counted as "
        f"{VCPU_SPEED:g} of a host's core",
        "bucket": found.load.line,
    }
    if (request.dataset_bytes or request.images) and cost.bytes_source not in (GIVEN, cost.source):
        missing = "--dataset-bytes" if request.images else "--images"
        facts["assumed"] = (
            f"{human_bytes(cost.image.num_bytes)} per image, the {cost.bytes_source}: give {missing} as well"
        )
    if images := request.epoch_images:
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
