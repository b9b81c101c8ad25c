"""Whether the hosts of a TPU can feed it: the needs of a rate of images, compared with the hosts' resources.

All needs grow in proportion to images/s: cores, network, the bucket's bandwidth. So one number describes each of them,
its headroom: available over needed. The smallest headroom decides the verdict. docs/capacity.md has the arithmetic.

The cost of an image is a measurement: ours (`dataprep/data/input_costs.csv`), or a user's from the JSON of
`dataprep bench` or `dataprep diagnose`. `dataprep/data/host_cores.csv` has the speed of the hosts' cores, compared with
the core of our measurements. Everything but reading these tables is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import ceil, inf
from typing import Any, Literal, TypeAlias

import msgspec

from dataprep.cloud.accelerators import Accelerator, TpuMachine, generations, machines, smallest_slice
from dataprep.cloud.prices import table
from dataprep.dataset.documents import convert
from dataprep.errors import UndecidedError, UsageError
from dataprep.messages import command_line

USABLE_SHARE = 0.8
"""Share of a host's vCPUs and network for input; training loop, runtime, TLS and uneven steps take the rest."""
VCPU_SPEED = 0.6
"""Speed of a vCPU relative to a core of the same host: hosts count hyperthreads, and the two of a core together do
about 1.2 times what one does alone."""
CERTAIN_GBPS = 10.0
"""Network of a host if none is published: a safe third of what N1 machines with as many vCPUs get."""
CACHE_SHARE = 0.5
"""Share of a host's memory that cached files may take."""

Verdict = Literal["fed", "input-bound", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """The hosts of an accelerator; all fields but `hosts` and `bucket_gbps` describe one host."""

    hosts: int
    vcpus: float
    ram_bytes: float
    nic_gbps: float | None
    """Promised network; None if it is not published."""
    measured_gbps: float | None = None
    """Measured rate at which a host reads from the bucket; it counts in full, in place of `nic_gbps`."""
    bucket_gbps: float | None = None
    """Bandwidth of the bucket for all hosts together; None leaves it out."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 < value < inf:
                raise UsageError(f"the hosts' {name}: got {value}, expected a finite number above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageCost:
    """Time and bytes that one image costs a host."""

    loader: str
    cpu_ms: float
    """CPU time of one core of a host, over all processes of the loader."""
    stored_ms: float
    """Part of that time that grows with the stored pixels."""
    num_bytes: float
    """Bytes read from the bucket."""
    decodes: Literal["crop", "whole"] = "crop"
    """Whether the loader decodes only the crop, not the complete image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImages:
    """The dataset as it is stored now."""

    num_bytes: float
    """Size of all images that an epoch reads."""
    short_side: int | None
    """Short side of the mean image, pixels; None if it is not known."""
    url: str | None = None
    """URL of the dataset, if it is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """One resource of loading: the amount that is needed, and the amount that the hosts have."""

    name: Literal["cores", "network", "bucket"]
    needed: float
    """Need at the required rate: of one host, or of all hosts together for the bucket."""
    available: float
    unit: str
    at_least: bool = False
    """Whether `available` is a lower bound, because the real amount is not published."""

    @property
    def headroom(self) -> float:
        """Available over needed; below 1 the resource is short."""
        return self.available / self.needed if self.needed else inf


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """One change, and the rate that the hosts could deliver with it."""

    name: str
    change: str
    """Advice, in one line."""
    images_per_s: float
    """Rate of all hosts if the accelerator were fast enough; a lower bound if `certain` is False."""
    utilisation: float
    """Utilisation of the accelerator, 0..1."""
    limit: str
    """The resource that limits the rate after the change."""
    certain: bool
    command: str = ""
    """The command that makes the change; empty if it is a setting of the loader."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityPlan:
    """Whether the hosts can feed the accelerator, and what limits them."""

    verdict: Verdict
    asked_images_per_s: float
    """Rate that the accelerator takes from all hosts."""
    host_images_per_s: float
    """Rate that one host must deliver."""
    resources: tuple[Resource, ...]
    limit: str
    """The resource that is short, or that would be the first to be short at a higher rate."""
    headroom: float
    """Headroom of the resource `limit`."""
    images_per_s: float
    """Rate that the hosts certainly deliver if the accelerator is fast enough."""
    most_images_per_s: float
    """Rate that the hosts could deliver if every resource of unknown amount were sufficient."""
    utilisation: float
    """Utilisation of the accelerator that is certain, 0..1. MLPerf Storage passes at 0.9."""
    what_ifs: tuple[WhatIf, ...]
    """Changes, the best first."""

    @property
    def tightest(self) -> Resource:
        """The resource with the smallest headroom, certain or not."""
        return min(self.resources, key=_headroom)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCores:
    """Cores of the hosts of a TPU generation, a row of host_cores.csv."""

    processor: str
    """Name of the processor; empty if no source states it."""
    processor_source: str
    speed: float
    """Images a second that a core prepares, divided by the same for a core of the machine `relative_to`."""
    relative_to: str
    """Processor of the machine that measured our table of costs."""
    basis: str
    """Kind of evidence for the speed: measured, published case, or assumed."""
    ground: str
    """Basis of the speed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCost:
    """One row of the table of measurements."""

    image_size: int
    """Side of the delivered images, pixels."""
    cost: ImageCost
    date: str
    machine: str
    """Processor of the machine that measured."""


CostTable: TypeAlias = Mapping[str, tuple[MeasuredCost, ...]]
"""Measurements by loader, the smallest images first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredFile:
    """The cost that a user measured."""

    cost: ImageCost
    image_size: int | None
    """Side of the images that were delivered; None if the document does not say."""
    url: str | None
    """The dataset that was read; None if the document names none or several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnoughHosts:
    """The smallest TPU with one kind of host that delivers a rate."""

    machine: TpuMachine
    host_images_per_s: float = 0.0
    """Rate that one host certainly delivers; 0 if its vCPUs are not known."""
    hosts: int = 0
    """Number of hosts that the rate takes."""
    accelerator: Accelerator | None = None
    """Smallest TPU with this many hosts; None if there is none."""
    plan: CapacityPlan | None = None
    """Plan of that TPU; None if there is none."""

    @property
    def at_least(self) -> bool:
        """Whether the hosts may deliver more, because the amount of what limits them is not published."""
        return self.plan is not None and any(
            resource.at_least for resource in self.plan.resources if resource.name == self.plan.limit
        )

    @property
    def reason(self) -> str:
        """Reason why no TPU with these hosts is enough."""
        if self.machine.vcpus is None:
            return "its vCPUs are not known"
        return f"{self.hosts:,} hosts would be needed, more than the largest TPU of this type has"


def plan_capacity(
    images_per_s: float,
    pod: Pod,
    cost: ImageCost,
    *,
    stored: StoredImages | None = None,
    short_side: int | None = None,
    other_loaders: Mapping[str, ImageCost] | None = None,
) -> CapacityPlan:
    """Compare the accelerator's needs with its hosts' resources.

    Args:
        images_per_s: Rate that the accelerator takes from all hosts.
        cost: Cost of an image with the loader in question.
        stored: The dataset as it is stored; with it, smaller images and caches are considered as changes.
        short_side: Short side to which the stored images could be shrunk, pixels.
        other_loaders: Costs of other loaders, by name.

    Raises:
        UsageError: A rate or a cost is not above 0.
    """
    amounts = {"images/s": images_per_s, "CPU ms an image": cost.cpu_ms, "bytes an image": cost.num_bytes}
    for name, value in amounts.items():
        if not 0 < value < inf:
            raise UsageError(f"{name}: got {value}, expected a finite number above 0")
    resources = needs(images_per_s, pod, cost)
    verdict, limit = _judge(resources)
    what_ifs = _what_ifs(images_per_s, pod, cost, stored, short_side, other_loaders or {})
    return CapacityPlan(
        verdict=verdict,
        asked_images_per_s=images_per_s,
        host_images_per_s=images_per_s / pod.hosts,
        resources=resources,
        limit=limit.name,
        headroom=limit.headroom,
        images_per_s=images_per_s * min(map(_headroom, resources)),
        most_images_per_s=images_per_s * min(map(_headroom, _known(resources))),
        utilisation=min(1.0, *map(_headroom, resources)),
        what_ifs=tuple(sorted(what_ifs, key=lambda found: found.images_per_s, reverse=True)),
    )


def needs(images_per_s: float, pod: Pod, cost: ImageCost, cached_share: float = 0.0) -> tuple[Resource, ...]:
    """Return each resource: the need of a rate, and the amount that the hosts have.

    Args:
        images_per_s: Rate of all hosts.
        cached_share: Share of the bytes that a host reads from its own memory.
    """
    of_host = images_per_s / pod.hosts
    gbps = of_host * cost.num_bytes * 8e-9 * (1 - cached_share)
    cores = Resource(
        name="cores", needed=of_host * cost.cpu_ms * 1e-3, available=pod.vcpus * USABLE_SHARE * VCPU_SPEED, unit="cores"
    )
    network = Resource(
        name="network",
        needed=gbps,
        available=pod.measured_gbps or (pod.nic_gbps or CERTAIN_GBPS) * USABLE_SHARE,
        unit="Gbit/s",
        at_least=pod.nic_gbps is None and pod.measured_gbps is None,
    )
    if not pod.bucket_gbps:
        return cores, network
    return cores, network, Resource(name="bucket", needed=gbps * pod.hosts, available=pod.bucket_gbps, unit="Gbit/s")


def enough_hosts(
    images_per_s: float, costs: Mapping[str, ImageCost], pod_of: Callable[[TpuMachine, int], Pod]
) -> list[EnoughHosts]:
    """Return the smallest TPU of each kind of host for a rate: few hosts first, then much headroom, then old ones.

    Args:
        images_per_s: Rate of all hosts together.
        costs: Cost of an image by TPU generation.
        pod_of: Function that returns a number of hosts of a kind whose vCPUs are known.
    """
    found = []
    for machine in machines().values():
        if not machine.slices:
            continue
        if machine.vcpus is None:
            found.append(EnoughHosts(machine=machine))
            continue
        cost = costs[machine.generation]
        host_images_per_s = plan_capacity(images_per_s, pod_of(machine, 1), cost).images_per_s
        hosts = ceil(images_per_s / host_images_per_s)
        accelerator = smallest_slice(machine, hosts)
        plan = plan_capacity(images_per_s, pod_of(machine, accelerator.hosts), cost) if accelerator else None
        found.append(
            EnoughHosts(
                machine=machine, host_images_per_s=host_images_per_s, hosts=hosts, accelerator=accelerator, plan=plan
            )
        )
    return sorted(found, key=_rank)


def verdict_sentence(plan: CapacityPlan, accelerator: str) -> str:
    """Return the plan in one sentence."""
    short = next(resource for resource in plan.resources if resource.name == plan.limit)
    per_host = "" if short.name == "bucket" else " per host"
    ratio = f"{_number(short.needed)} {short.unit} needed{per_host}, {_number(short.available)} available"
    named = {"cores": "the hosts' CPU", "network": "the hosts' network", "bucket": "the bucket"}[short.name]
    least = "at least " if short.at_least else ""
    if plan.verdict == "fed":
        return (
            f"{accelerator} is fed with {least}{_number(plan.headroom)}-fold headroom: "
            f"{_number(plan.host_images_per_s)} images/s needed per host; "
            f"{named} would be short first ({ratio})."
        )
    if plan.verdict == "input-bound":
        most = "" if plan.images_per_s == plan.most_images_per_s else "at most "
        return (
            f"{accelerator} is input-bound: reaches {most}{_number(plan.most_images_per_s)} images/s, "
            f"{short.headroom:.0%} of the {_number(plan.asked_images_per_s)} that it takes; "
            f"{named} is short ({ratio})."
        )
    return (
        f"Cannot tell whether {accelerator} is fed: {_number(short.needed)} Gbit/s are needed{per_host}, the "
        f"hosts' network is not published, and only {_number(short.available)} are certain; measure it and give "
        "`host_gbps`."
    )


# Costs of an image


@cache
def host_cores() -> Mapping[str, HostCores]:
    """Return the cores of hosts by TPU generation."""
    texts = ("processor", "processor_source", "relative_to", "basis", "ground")
    return {
        row["generation"]: HostCores(speed=float(row["core_speed"]), **{name: row[name] for name in texts})
        for row in table("host_cores.csv")
    }


@cache
def measured_here() -> CostTable:
    """Return our table of measurements."""
    return costs_of(table("input_costs.csv"))


def costs_of(entries: Iterable[Mapping[str, str]]) -> CostTable:
    """Return the measurements in the rows of a table such as `dataprep/data/input_costs.csv`."""
    found: dict[str, tuple[MeasuredCost, ...]] = {}
    for row in entries:
        cost = ImageCost(
            loader=row["loader"],
            cpu_ms=float(row["cpu_ms_per_image"]),
            stored_ms=float(row["stored_ms_per_image"]),
            num_bytes=float(row["bytes_per_image"]),
            decodes="whole" if row["decodes"] == "whole" else "crop",
        )
        measured = MeasuredCost(image_size=int(row["image_size"]), cost=cost, date=row["date"], machine=row["machine"])
        found[cost.loader] = (*found.get(cost.loader, ()), measured)
    return found


def cost_on_host(cost: ImageCost, core_speed: float) -> ImageCost:
    """Return a measured cost on a host with cores of this speed, relative to the core that measured it."""
    return replace(cost, cpu_ms=cost.cpu_ms / core_speed, stored_ms=cost.stored_ms / core_speed)


def cost_from_table(loader: str, image_size: int, bytes_per_image: float, costs: CostTable | None = None) -> ImageCost:
    """Return the cost of an image of this size for a loader, by our own table of measurements or by another one.

    Between and beyond two measured sizes the cost is assumed to be linear in the delivered pixels. The part of it that
    grows with the stored pixels is assumed to be linear in the stored bytes.

    Raises:
        UndecidedError: The loader was not measured at this size.
    """
    measured = (measured_here() if costs is None else costs)[loader]
    row = next((row for row in measured if row.image_size == image_size), None)
    if row is None and len(measured) > 1:
        row = _between(measured[0], measured[-1], image_size)
    if row is None:
        raise UndecidedError(f"{loader} at {image_size} pixels was not measured, only at {measured[0].image_size}")
    stored_ms = row.cost.stored_ms * bytes_per_image / row.cost.num_bytes
    return replace(
        row.cost,
        cpu_ms=row.cost.cpu_ms - row.cost.stored_ms + stored_ms,
        stored_ms=stored_ms,
        num_bytes=bytes_per_image,
    )


def cost_from_document(document: Any, name: str) -> MeasuredFile:
    """Return the cost in the JSON of `dataprep bench` or `dataprep diagnose`.

    If there are several sections, the most expensive one counts. The part that grows with the stored pixels has the
    same share as in our own measurements.

    Args:
        name: Name of the file, for errors.

    Raises:
        UsageError: The document is not the JSON of either command, or has no CPU time above 0.
    """
    if not isinstance(document, dict) or document.get("schema_version") != 1:
        raise UsageError(
            f"{name}: expected the JSON that `dataprep bench` or `dataprep diagnose` writes, of schema version 1"
        )
    where, advice = f"{name}: not the JSON of `dataprep bench` or `dataprep diagnose`", "measure again"
    if "stages" in document:
        diagnosis = convert(document, _Diagnosis, where=where, advice=advice, error=UsageError)
        cpu_s = {stage.name: stage.cpu_s_per_image for stage in diagnosis.stages}
        # Without one of the two stages, nothing is known about our loader.
        cpu_ms = 1e3 * (cpu_s["fetch"] + cpu_s["prepare"]) if {"fetch", "prepare"} <= cpu_s.keys() else 0.0
        found, settings, urls = [(cpu_ms, diagnosis.bytes_per_image)], diagnosis.settings, {diagnosis.url}
    else:
        bench = convert(document, _Bench, where=where, advice=advice, error=UsageError)
        found = [(section.cpu_ms_per_image, section.bytes_per_image) for section in bench.sections]
        settings, urls = bench.settings, {section.url for section in bench.sections}
    if not found or min(found)[0] <= 0:
        raise UsageError(f"{name}: no CPU time above 0 in it; measure for longer")
    cpu_ms, num_bytes = max(found)
    row = measured_here()["dataprep"][0].cost
    return MeasuredFile(
        cost=replace(row, cpu_ms=cpu_ms, stored_ms=cpu_ms * row.stored_ms / row.cpu_ms, num_bytes=num_bytes),
        image_size=settings.image_size,
        url=urls.pop() if len(urls) == 1 else None,
    )


class _Settings(msgspec.Struct):
    """Settings of a measurement, as far as they are read."""

    image_size: int | None = None


class _BenchSection(msgspec.Struct):
    bytes_per_image: float
    cpu_ms_per_image: float
    url: str | None = None


class _Bench(msgspec.Struct):
    """JSON of `dataprep bench`, as far as it is read."""

    sections: list[_BenchSection]
    settings: _Settings = msgspec.field(default_factory=_Settings)


class _Stage(msgspec.Struct):
    name: str
    cpu_s_per_image: float


class _Diagnosis(msgspec.Struct):
    """JSON of `dataprep diagnose`, as far as it is read."""

    stages: list[_Stage]
    bytes_per_image: float
    url: str | None = None
    settings: _Settings = msgspec.field(default_factory=_Settings)


def _between(low: MeasuredCost, high: MeasuredCost, image_size: int) -> MeasuredCost:
    share = (image_size**2 - low.image_size**2) / (high.image_size**2 - low.image_size**2)
    cpu_ms = low.cost.cpu_ms + share * (high.cost.cpu_ms - low.cost.cpu_ms)
    stored_ms = min(cpu_ms, low.cost.stored_ms + share * (high.cost.stored_ms - low.cost.stored_ms))
    return replace(low, image_size=image_size, cost=replace(low.cost, cpu_ms=cpu_ms, stored_ms=max(0.0, stored_ms)))


def _judge(resources: tuple[Resource, ...]) -> tuple[Verdict, Resource]:
    """Return the verdict and the resource that decides it; a certain shortage comes before a possible one."""
    certain = min(_known(resources), key=_headroom)
    if certain.headroom < 1:
        return "input-bound", certain
    tightest = min(resources, key=_headroom)
    return ("unknown" if tightest.headroom < 1 else "fed"), tightest


def _what_ifs(
    images_per_s: float,
    pod: Pod,
    cost: ImageCost,
    stored: StoredImages | None,
    short_side: int | None,
    other_loaders: Mapping[str, ImageCost],
) -> list[WhatIf]:
    def what_if(name: str, change: str, changed: ImageCost, cached_share: float = 0.0, command: str = "") -> WhatIf:
        limit = min(needs(images_per_s, pod, changed, cached_share), key=_headroom)
        return WhatIf(
            name=name,
            change=change,
            images_per_s=images_per_s * limit.headroom,
            utilisation=min(1.0, limit.headroom),
            limit=limit.name,
            certain=not limit.at_least,
            command=command,
        )

    found = []
    for name, other in other_loaders.items():
        decoded = "the crop alone" if other.decodes == "crop" else "whole images"
        found.append(what_if(f"loader {name}", f"load with {name}, which decodes {decoded}", other))
    if stored and stored.short_side and short_side and short_side < stored.short_side:
        # Bytes and decoding shrink with the pixels: 0.41 of the pixels had 0.40 of the bytes at JPEG quality 95.
        kept = (short_side / stored.short_side) ** 2
        smaller = replace(cost, cpu_ms=cost.cpu_ms - cost.stored_ms * (1 - kept), num_bytes=cost.num_bytes * kept)
        change, url = f"store a shorter side of {short_side} (dataprep convert)", (stored.url or "URL").rstrip("/")
        command = command_line("convert", url, output=f"{url}-{short_side}", format="webdataset", resize=short_side)
        found.append(what_if("resize", change, smaller, command=command))
    if stored:
        # Every pass gives a host other blocks, so what counts is the share of the complete dataset that it holds.
        cached = min(1.0, pod.ram_bytes * CACHE_SHARE / stored.num_bytes)
        share = "all" if cached == 1 else f"{cached:.0%}"
        change = f"keep {share} of the dataset in half of each host's memory (cache_dir=/dev/shm/…)"
        found.append(what_if("cache", change, cost, cached))
    return found


def _known(resources: tuple[Resource, ...]) -> list[Resource]:
    return [resource for resource in resources if not resource.at_least]


def _headroom(resource: Resource) -> float:
    return resource.headroom


def _rank(row: EnoughHosts) -> tuple[bool, int, float, int]:
    headroom = row.plan.headroom if row.plan else 0.0
    hosts = row.accelerator.hosts if row.accelerator else 0
    return row.accelerator is None, hosts, -headroom, list(generations()).index(row.machine.generation)


def _number(value: float) -> str:
    """Return a number with three significant digits, or all digits of its integer part."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
