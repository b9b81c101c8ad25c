"""What `dataprep plan-input` finds for one TPU, as text and as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dataprep.cloud.accelerators import Accelerator
from dataprep.commands.plan_data import PlannedData
from dataprep.commands.plan_places import PACK, PricedPlaces, print_places
from dataprep.commands.plan_requests import BucketLoad
from dataprep.host.piped import open_console, print_table
from dataprep.messages import counted, human_bytes, usd

if TYPE_CHECKING:
    from loaders.capacity.plan import CapacityPlan, ImageCost, Pod, Resource, StoredImages, WhatIf

SCHEMA_VERSION = 1
_INTERPRETER_CORES = 16
"""Number of cores that one interpreter can keep busy (docs/loaders.md)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingTime:
    """How long an accelerator trains, and what its chips cost meanwhile, evaluations and interruptions aside."""

    epochs: int
    images: int
    """Images of all epochs."""
    hours: float
    waiting_hours: float
    """Part of `hours` in which the accelerator waits for images."""
    chip_hours: float
    usd_per_chip_hour: float | None
    """Price of a chip for an hour; None if it is not given."""
    usd: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Deliverable:
    """What the hosts of an accelerator deliver, whatever rate it takes."""

    hosts: int
    cost: ImageCost
    bytes_source: str
    """Where the bytes of an image come from."""
    image_size: int
    core_is_unknown: bool
    """Whether the hosts' cores are taken to be as fast as the user's, because it is not known how fast those are."""
    plan: CapacityPlan
    """Plan for any rate."""
    load: BucketLoad
    """What the bucket serves at the rate that the hosts certainly deliver."""

    @property
    def lines(self) -> list[str]:
        """Lines for a terminal: the rate, and the requests to the bucket at that rate."""
        lines = [self.sentence, f"bucket       at that rate {self.load.line}"]
        return [*lines, self.load.loose] if self.load.loose else lines

    @property
    def sentence(self) -> str:
        by = [f"{_sign(each)}{self._rate(each):,.0f} by the {each.name}" for each in self.plan.resources]
        if_same = ", if a host's core is as fast as yours" if self.core_is_unknown else ""
        return (
            f"deliverable  {_deliverable(self.plan, self.hosts)}: {', '.join(by)} "
            f"({self.image_size} pixels, {self.cost.cpu_ms:.2f} ms of a host's core and "
            f"{human_bytes(self.cost.num_bytes)} ({self.bytes_source}) an image with {self.cost.loader}{if_same})"
        )

    def document(self) -> dict[str, object]:
        """Return the rates as JSON values, which docs/capacity.md describes."""
        tightest = _tightest(self.plan)
        return {
            "images_per_s": self.plan.images_per_s,
            "limit": tightest.name,
            "at_least": tightest.at_least,
            "resources": {each.name: self._rate(each) for each in self.plan.resources},
            "image_size": self.image_size,
            "hosts": self.hosts,
            "bucket": self.load.document(),
        }

    def _rate(self, resource: Resource) -> float:
        """Return the images/s of all hosts that one resource is enough for."""
        return self.plan.asked_images_per_s * resource.headroom


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A plan, and the figures on which it is based."""

    accelerator: Accelerator
    pod: Pod
    cost: ImageCost
    """Cost of an image on these hosts."""
    cost_source: str
    processor: str
    """Processor of the hosts; empty if no source states it."""
    core_speed: float
    """Speed of the hosts' cores, as a share of the one that `cost_source` names."""
    core_basis: str
    """What that speed rests on."""
    core_is_unknown: bool
    """Whether the hosts' cores are taken to be as fast as the user's, because it is not known how fast those are."""
    bytes_source: str
    """Where the bytes of an image come from."""
    model: str | None
    """Name of the model, if it is given."""
    image_size: int
    data: PlannedData
    """What is given of the data, and the dataset whose figures are assumed where none are."""
    bytes_are_assumed: bool
    """Whether the bytes of an image are a mean, although another dataset is planned."""
    hns: bool
    """Whether the bucket has a hierarchical namespace."""
    stored: StoredImages
    epochs: int
    chip_hour_usd: float | None
    """Price of a chip for an hour, if it is given."""
    plan: CapacityPlan
    places: PricedPlaces | None
    """Ways to read the data, if the bucket's location is given."""

    @property
    def sentence(self) -> str:
        from loaders.capacity.plan import verdict_sentence

        sentence = verdict_sentence(self.plan, self.accelerator.name)
        by_cores = self.plan.verdict == "fed" or self.plan.limit in ("cores", "workers")
        if self.core_is_unknown and by_cores:
            sentence = f"If a host's core is as fast as yours, {sentence}"
        return f"{sentence} {self.load.loose}" if self.load.loose else sentence

    @property
    def load(self) -> BucketLoad:
        """What the bucket serves at the required rate."""
        return BucketLoad(
            images_per_s=self.plan.asked_images_per_s,
            bytes_per_image=self.cost.num_bytes,
            num_bytes=self.stored.num_bytes,
            objects=self.data.objects,
            hns=self.hns,
        )

    @property
    def training(self) -> TrainingTime | None:
        """How long training takes at the rate that the hosts certainly deliver, and what it costs; None for a single
        epoch without a price of a chip."""
        if self.epochs == 1 and self.chip_hour_usd is None:
            return None
        images = self.epochs * (self.data.epoch_images or round(self.stored.num_bytes / self.cost.num_bytes))
        hours = images / (self.plan.asked_images_per_s * self.plan.utilisation) / 3600
        chip_hours = hours * self.accelerator.chips
        return TrainingTime(
            epochs=self.epochs,
            images=images,
            hours=hours,
            waiting_hours=hours * (1 - self.plan.utilisation),
            chip_hours=chip_hours,
            usd_per_chip_hour=self.chip_hour_usd,
            usd=None if self.chip_hour_usd is None else chip_hours * self.chip_hour_usd,
        )

    @property
    def not_counted(self) -> list[str]:
        """What the verdict leaves out, each with what is needed of it."""
        if self.pod.bucket_gbps:
            return []
        gbps = self.plan.asked_images_per_s * self.cost.num_bytes * 8e-9
        return [
            f"the bucket's bandwidth: {gbps:,.2f} Gbit/s are needed of your project's quota of Google egress bandwidth "
            "in the bucket's location, which the console shows under IAM & Admin, Quotas: give it as --bucket-gbps"
        ]

    def document(self) -> dict[str, object]:
        """Return the plan as JSON values, which docs/capacity.md describes."""
        accelerator = self.accelerator
        return {
            "schema_version": SCHEMA_VERSION,
            "sentence": self.sentence,
            "not_counted": self.not_counted,
            "accelerator": {
                **{key: getattr(accelerator, key) for key in ("name", "hosts", "chips", "cores", "hbm_gib")},
                "machine": asdict(accelerator.machine),
            },
            "pod": asdict(self.pod),
            "cost": {
                **asdict(self.cost),
                "source": self.cost_source,
                "processor": self.processor,
                "core_speed": self.core_speed,
                "core_basis": self.core_basis,
                "bytes_source": self.bytes_source,
                "image_size": self.image_size,
            },
            "stored": asdict(self.stored),
            "bucket": self.load.document(),
            "training": asdict(self.training) if self.training else None,
            "places": self.places.document() if self.places else None,
            "plan": asdict(self.plan)
            | {"resources": [asdict(found) | {"headroom": found.headroom} for found in self.plan.resources]},
        }


def print_found(found: Found) -> None:
    """Print a plan: verdict, facts, resources, the price of the reading, and what would change the rate."""
    console = open_console()
    console.print(Text(found.sentence, style="bold"))
    console.print()
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(found).items():
        facts.add_row(Text(f"  {name}", style="dim"), Text(value))
    print_table(console, facts)
    console.print()
    print_table(console, _resources(found.plan))
    console.print()
    if found.places is not None:
        print_places(console, found.places)
        console.print()
    changes = [change for change in found.plan.what_ifs if _makes_a_difference(change, found.plan)]
    if changes:
        print_table(console, _what_ifs(found.plan, changes))
    else:
        console.print("What if: none of the changes that are known here makes a difference.")
    for change in changes:
        if change.command:
            console.print(Text(f"{change.name}: {change.command}"), soft_wrap=True)
    for line in pack_lines(found.load, found.places):
        console.print(Text(line), soft_wrap=True)


def pack_lines(load: BucketLoad | None, places: PricedPlaces | None) -> list[str]:
    """Return the command that packs loose pictures if they take too many requests, and what it saves; else nothing."""
    saved = places.pack_line if places else ""
    is_needed = saved or (load and load.loose)
    return [*([saved] if saved else []), *([f"pack: {PACK}"] if is_needed else [])]


def _facts(found: Found) -> dict[str, str]:
    plan, cost, pod = found.plan, found.cost, found.pod
    facts = {"not counted": "; ".join(found.not_counted)} if found.not_counted else {}
    facts |= _hosts(found) | {
        "required": f"{plan.asked_images_per_s:,.0f} images/s at {found.image_size} pixels"
        + (f" by {found.model}" if found.model else ""),
        "deliverable": _deliverable(plan, pod.hosts),
        "image": f"{cost.cpu_ms:.2f} ms of a host's core with {cost.loader}, "
        f"{human_bytes(cost.num_bytes)} from the bucket",
        "cores": f"{found.processor or 'processor not known'}, each core counted as {found.core_speed:g} of one that "
        f"takes {cost.cpu_ms * found.core_speed:.2f} ms ({found.cost_source}); {found.core_basis}",
        "counted": f"{pod.usable_share:.0%} of vCPUs and promised network; a vCPU, being a hyperthread, as "
        f"{pod.vcpu_speed:g} of a host's core",
        "bucket": found.load.line,
    }
    if found.bytes_are_assumed:
        missing = "--dataset-bytes" if found.data.images else "--images"
        mean = f"{human_bytes(cost.num_bytes)} an image, the {found.bytes_source}"
        assumed = f"{mean}: give {missing} or --bytes-per-image"
        facts["assumed"] = assumed
    if images := found.data.epoch_images:
        minutes = images / (plan.asked_images_per_s * plan.utilisation) / 60
        of_dataset = "" if found.data.images else f" of {found.data.dataset}"
        facts["epoch"] = f"{minutes:,.1f} min for the {images:,} images{of_dataset}"
    if found.training is not None:
        facts["training"] = _training(found, found.training)
    cores = next(resource.needed for resource in plan.resources if resource.unit == "cores")
    if cost.loader == "dataprep" and cores > _INTERPRETER_CORES:
        processes = ceil(cores / pod.vcpu_speed / 8)
        facts["loader"] = f"set processes={processes}: one interpreter hands out work for {_INTERPRETER_CORES} cores"
    return facts


def _training(found: Found, training: TrainingTime) -> str:
    """Return how long training takes, where it waits, and what it costs."""
    tightest = _tightest(found.plan)
    waits = found.plan.utilisation < 1
    text = f"{training.hours:,.1f} h for {counted(training.epochs, 'epoch')}"
    if training.usd is not None and training.usd_per_chip_hour is not None:
        chips = f"{counted(found.accelerator.chips, 'chip')} at {usd(training.usd_per_chip_hour)} an hour"
        text = f"{usd(training.usd)}: {text} on {chips}"
    if waits:
        text = f"{'at most ' if tightest.at_least else ''}{text}"
        return f"{text}; {training.waiting_hours:,.1f} h of them waiting for images, limited by the {tightest.name}"
    return f"{text}; no waiting for images"


def _hosts(found: Found) -> dict[str, str]:
    accelerator, pod = found.accelerator, found.pod
    machine = accelerator.machine
    kind = "" if machine.machine_type == machine.generation else f" {machine.machine_type}"
    nic = f"{machine.nic_gbps:g} Gbit/s" if machine.nic_gbps else "network not published"
    return {
        "TPU": f"{accelerator.name}: {counted(accelerator.chips, 'chip')}, {counted(accelerator.cores, 'core')}, "
        f"{accelerator.hbm_gib:,} GiB of HBM",
        "hosts": f"{pod.hosts:,}{kind}, each {pod.vcpus:g} vCPUs, {machine.ram_gb:,} GB RAM, {nic}",
        "source": f"{machine.source}, {machine.date}" + (f"; {machine.note}" if machine.note else ""),
    }


def _resources(plan: CapacityPlan) -> Table:
    table = Table(title="One host; the bucket is shared by all hosts", title_justify="left", box=None, padding=(0, 2))
    table.add_column("")
    for name in ("needed", "available", "headroom"):
        table.add_column(name, justify="right")
    for resource in sorted(plan.resources, key=lambda resource: resource.headroom):
        sign = _sign(resource)
        short = resource.headroom < 1
        table.add_row(
            resource.name,
            f"{resource.needed:,.2f} {resource.unit}",
            f"{sign}{resource.available:,.1f} {resource.unit}",
            Text(f"{sign}{resource.headroom:,.2f} x", style="red" if short else "green"),
        )
    return table


def _makes_a_difference(change: WhatIf, plan: CapacityPlan) -> bool:
    """Return whether the share of the required rate, as it is shown, differs from the present one."""
    return f"{change.utilisation:.0%}" != f"{plan.utilisation:.0%}"


def _deliverable(plan: CapacityPlan, hosts: int) -> str:
    rate = plan.images_per_s
    return f"{_sign(_tightest(plan))}{rate:,.0f} images/s by all hosts, {rate / hosts:,.0f} by each"


def _tightest(plan: CapacityPlan) -> Resource:
    return min(plan.resources, key=lambda resource: resource.headroom)


def _sign(resource: Resource) -> str:
    """Return the sign before a rate or an amount that is a lower bound."""
    return "≥ " if resource.at_least else ""


def _what_ifs(plan: CapacityPlan, changes: Sequence[WhatIf]) -> Table:
    title = "What if (each change alone): images/s that the hosts could deliver"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    table.add_column("change", overflow="fold")
    for name in ("images/s", "of required", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    tightest = _tightest(plan)
    table.add_row(
        "as it is", f"{_sign(tightest)}{plan.images_per_s:,.0f}", f"{plan.utilisation:.0%}", tightest.name, style="bold"
    )
    for change in changes:
        sign = "" if change.certain else "≥ "
        table.add_row(change.change, f"{sign}{change.images_per_s:,.0f}", f"{change.utilisation:.0%}", change.limit)
    return table
