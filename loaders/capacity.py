"""What an accelerator's hosts must do to keep it fed, beside what they have: pure arithmetic over measured costs.

Everything grows in proportion to images/s: cores, network, the bucket's bandwidth. So one number says it all for each
of them, its headroom: what is there over what is needed. The smallest headroom is the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Literal, NamedTuple

from dataprep.errors import UsageError

USABLE_SHARE = 0.8
"""Of a host's vCPUs and promised network. The rest is for the training loop, the runtime, TLS, and uneven steps."""
VCPU_SPEED = 0.6
"""Of a vCPU beside the core on which the CPU time was measured: hosts count hyperthreads, and the two of one core
together do about 1.2 times what it does with one."""
CERTAIN_GBPS = 10.0
"""Of a host where no source says: an assumption on the safe side, a third of what Compute Engine gives its N1 machines
of as many vCPUs."""
CACHE_SHARE = 0.5
"""Of a host's memory that files may take."""

Verdict = Literal["fed", "input-bound", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """The hosts. All fields but `hosts` and `bucket_gbps` are of one host."""

    hosts: int
    vcpus: float
    ram_bytes: float
    nic_gbps: float | None
    """As promised; None where it is not known."""
    measured_gbps: float | None = None
    """What a host was seen to read from the bucket; counts in full, instead of `nic_gbps`."""
    workers: int | None = None
    """Processes or threads of the loader; None takes all cores."""
    bucket_gbps: float | None = None
    """What the bucket gives all hosts together; None leaves it out."""
    usable_share: float = USABLE_SHARE
    vcpu_speed: float = VCPU_SPEED

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 < value < inf:
                raise UsageError(f"the hosts' {name}: got {value}, expected a finite number above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageCost:
    """What one image costs a host."""

    loader: str
    cpu_ms: float
    """Of one core, all of the loader's processes together."""
    stored_ms: float
    """The part of it that grows with the stored pixels."""
    num_bytes: float
    """Read from the bucket."""
    decodes: Literal["crop", "whole"] = "crop"
    """What of the image."""
    serial_ms: float = 0.0
    """Of a stage that one thread does alone, such as joining batches in the process that trains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImages:
    """The dataset as it is stored now."""

    num_bytes: float
    """Of all images that an epoch reads."""
    short_side: int
    """Pixels, of the mean image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """One thing that images need."""

    name: Literal["cores", "workers", "serial stage", "network", "bucket"]
    needed: float
    """At the asked rate; of one host, but all hosts' together from the bucket."""
    available: float
    unit: str
    at_least: bool = False
    """`available` is only what is certain; there may be more."""

    @property
    def headroom(self) -> float:
        """What is there over what is needed: below 1 it is short."""
        return self.available / self.needed if self.needed else inf


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """One change, and what the hosts could deliver then."""

    name: str
    change: str
    """One line: what to do."""
    images_per_s: float
    """Of all hosts, were the accelerator faster; at least that, where `certain` is False."""
    utilisation: float
    """Of the accelerator, 0..1."""
    limit: str
    """The resource that is the next to be short."""
    certain: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityPlan:
    """The answer."""

    verdict: Verdict
    asked_images_per_s: float
    """Of all hosts, which the accelerator takes."""
    host_images_per_s: float
    """What one host must deliver."""
    resources: tuple[Resource, ...]
    limit: str
    """The resource that is short, or would be the next."""
    headroom: float
    """Of that one."""
    images_per_s: float
    """What the hosts are certain to deliver, were the accelerator faster."""
    most_images_per_s: float
    """Were there enough of what is not known; otherwise the same."""
    utilisation: float
    """Of the accelerator, by what is certain, 0..1. MLPerf Storage passes at 0.9."""
    what_ifs: tuple[WhatIf, ...]
    """The best first."""


class _Change(NamedTuple):
    """The hosts and the image as they are after it."""

    name: str
    text: str
    pod: Pod
    cost: ImageCost
    cached_share: float = 0.0


def plan_capacity(
    images_per_s: float,
    pod: Pod,
    cost: ImageCost,
    *,
    stored: StoredImages | None = None,
    short_side: int | None = None,
    other_loaders: Mapping[str, ImageCost] | None = None,
) -> CapacityPlan:
    """Compare what the accelerator asks of its hosts with what they have.

    Args:
        images_per_s: What the accelerator takes, all hosts together.
        pod: The hosts.
        cost: Of an image, with the loader in question.
        stored: The dataset, for what storing or caching it in another way would change.
        short_side: Pixels to which the stored images could be shrunk.
        other_loaders: Their costs, to compare with.

    Raises:
        UsageError: A rate or a cost is not above 0.
    """
    amounts = {"images/s": images_per_s, "CPU ms an image": cost.cpu_ms, "bytes an image": cost.num_bytes}
    for name, value in amounts.items():
        if not 0 < value < inf:
            raise UsageError(f"{name}: got {value}, expected a finite number above 0")
    resources = needs(images_per_s, pod, cost)
    verdict, limit = _judge(resources)
    changes = _changes(pod, cost, stored, short_side, other_loaders or {})
    what_ifs = [_what_if(images_per_s, change) for change in changes]
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
    """What the rate takes beside what there is.

    Args:
        images_per_s: Of all hosts.
        pod: The hosts.
        cost: Of an image.
        cached_share: Of the bytes, which a host reads from its own memory.
    """
    of_host = images_per_s / pod.hosts
    cores = pod.vcpus * pod.usable_share * pod.vcpu_speed
    gbps = of_host * cost.num_bytes * 8e-9 * (1 - cached_share)
    promised = (pod.nic_gbps or CERTAIN_GBPS) * pod.usable_share
    too_few = pod.workers is not None and pod.workers < cores
    found = [
        Resource(
            name="workers" if too_few else "cores",
            needed=of_host * cost.cpu_ms * 1e-3,
            available=min(cores, pod.workers or inf),
            unit="cores",
        ),
        Resource(
            name="network",
            needed=gbps,
            available=pod.measured_gbps or promised,
            unit="Gbit/s",
            at_least=pod.nic_gbps is None and pod.measured_gbps is None,
        ),
    ]
    if cost.serial_ms:
        found.append(Resource(name="serial stage", needed=of_host * cost.serial_ms * 1e-3, available=1.0, unit="cores"))
    if pod.bucket_gbps:
        found.append(Resource(name="bucket", needed=gbps * pod.hosts, available=pod.bucket_gbps, unit="Gbit/s"))
    return tuple(found)


def verdict_sentence(plan: CapacityPlan, accelerator: str) -> str:
    """The plan in one sentence."""
    short = next(resource for resource in plan.resources if resource.name == plan.limit)
    ratio = f"{_number(short.needed)} {short.unit} needed{_where(short)}, {_number(short.available)} there"
    least = "at least " if short.at_least else ""
    if plan.verdict == "fed":
        return (
            f"{accelerator} is fed with {least}{_number(plan.headroom)}-fold headroom: "
            f"{_number(plan.host_images_per_s)} images/s a host are asked; "
            f"{_named(short)} would be short first ({ratio})."
        )
    if plan.verdict == "input-bound":
        most = "" if plan.images_per_s == plan.most_images_per_s else "at most "
        return (
            f"{accelerator} is input-bound: reaches {most}{_number(plan.most_images_per_s)} images/s, "
            f"{short.headroom:.0%} of the {_number(plan.asked_images_per_s)} that it takes; "
            f"{_named(short)} is short ({ratio})."
        )
    return (
        f"Cannot tell whether {accelerator} is fed: {_number(short.needed)} Gbit/s are needed{_where(short)}, their "
        f"network is not published, and only {_number(short.available)} are certain; measure it and give --host-gbps."
    )


def _judge(resources: tuple[Resource, ...]) -> tuple[Verdict, Resource]:
    """What is certainly short decides before what may be."""
    certain = min(_known(resources), key=_headroom)
    if certain.headroom < 1:
        return "input-bound", certain
    tightest = min(resources, key=_headroom)
    return ("unknown" if tightest.headroom < 1 else "fed"), tightest


def _changes(
    pod: Pod,
    cost: ImageCost,
    stored: StoredImages | None,
    short_side: int | None,
    other_loaders: Mapping[str, ImageCost],
) -> Iterator[_Change]:
    if pod.workers:
        yield _Change("workers", "let the loader use all cores (--workers)", replace(pod, workers=None), cost)
    for name, other in other_loaders.items():
        decoded = "the crop alone" if other.decodes == "crop" else "whole images"
        yield _Change(f"loader {name}", f"load with {name}, which decodes {decoded}", pod, other)
    if stored and short_side and short_side < stored.short_side:
        # Bytes and decoding shrink with the pixels: 0.41 of the pixels had 0.40 of the bytes at JPEG quality 95.
        kept = (short_side / stored.short_side) ** 2
        smaller = replace(cost, cpu_ms=cost.cpu_ms - cost.stored_ms * (1 - kept), num_bytes=cost.num_bytes * kept)
        change = f"store a shorter side of {short_side} (dataprep build --resize {short_side})"
        yield _Change("resize", change, pod, smaller)
    if stored:
        # Every pass deals out other blocks to a host, so what counts is how much of the whole dataset it holds.
        cached = min(1.0, pod.ram_bytes * CACHE_SHARE / stored.num_bytes)
        share = "all" if cached == 1 else f"{cached:.0%}"
        change = f"keep {share} of the dataset in half of each host's memory (cache_dir=/dev/shm/…)"
        yield _Change("cache", change, pod, cost, cached)


def _what_if(images_per_s: float, change: _Change) -> WhatIf:
    limit = min(needs(images_per_s, change.pod, change.cost, change.cached_share), key=_headroom)
    return WhatIf(
        name=change.name,
        change=change.text,
        images_per_s=images_per_s * limit.headroom,
        utilisation=min(1.0, limit.headroom),
        limit=limit.name,
        certain=not limit.at_least,
    )


def _known(resources: tuple[Resource, ...]) -> list[Resource]:
    return [resource for resource in resources if not resource.at_least]


def _headroom(resource: Resource) -> float:
    return resource.headroom


def _named(resource: Resource) -> str:
    """In a sentence about the hosts."""
    return {
        "cores": "their CPU",
        "workers": "what the loader uses of their CPU, one core a worker,",
        "serial stage": "the loader's serial stage",
        "network": "their network",
        "bucket": "the bucket",
    }[resource.name]


def _where(resource: Resource) -> str:
    return "" if resource.name == "bucket" else " a host"


def _number(value: float) -> str:
    """Three digits at least, and none that say nothing."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
