"""What an accelerator's hosts need to keep it fed, compared with what they have: pure arithmetic over measured costs.

All needs grow in proportion to images/s: cores, network, the bucket's bandwidth. So one number describes each of them,
its headroom: available over needed. The smallest headroom decides the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Literal, NamedTuple

from dataprep.errors import UsageError
from dataprep.messages import shell_words

USABLE_SHARE = 0.8
"""Share of a host's vCPUs and promised network for input; the training loop, the runtime, TLS and uneven steps take
the rest."""
VCPU_SPEED = 0.6
"""Speed of a vCPU relative to a core of the same host: hosts count hyperthreads, and the two of a core together do
about 1.2 times what one does alone."""
CERTAIN_GBPS = 10.0
"""Network of a host for which none is published: a safe assumption, a third of what Compute Engine gives N1 machines
with as many vCPUs."""
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
    """Promised network; None where it is not published."""
    measured_gbps: float | None = None
    """Measured rate at which a host reads from the bucket; it counts in full, in place of `nic_gbps`."""
    workers: int | None = None
    """Processes or threads of the loader; None: all cores."""
    bucket_gbps: float | None = None
    """Bandwidth of the bucket for all hosts together; None leaves it out."""
    usable_share: float = USABLE_SHARE
    vcpu_speed: float = VCPU_SPEED

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
    """Whether the loader decodes the crop alone or the whole image."""
    serial_ms: float = 0.0
    """Time of a stage that one thread does alone, such as joining batches in the process that trains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImages:
    """The dataset as it is stored now."""

    num_bytes: float
    """Size of all images that an epoch reads."""
    short_side: int | None
    """Short side of the mean image, pixels; None if it is not known."""
    url: str | None = None
    """Where the dataset is, if that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """One resource that loading needs: how much of it is needed, and how much the hosts have."""

    name: Literal["cores", "workers", "serial stage", "network", "bucket"]
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
    """What to do, in one line."""
    images_per_s: float
    """Rate of all hosts if the accelerator were fast enough; a lower bound where `certain` is False."""
    utilisation: float
    """Utilisation of the accelerator, 0..1."""
    limit: str
    """The resource that limits the rate after the change."""
    certain: bool
    command: str = ""
    """The command that makes the change; empty where it is a setting of the loader."""


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
    """Utilisation of the accelerator by what is certain, 0..1. MLPerf Storage passes at 0.9."""
    what_ifs: tuple[WhatIf, ...]
    """Changes, the best first."""


class _Change(NamedTuple):
    """A change, with the hosts and the image's cost after it."""

    name: str
    text: str
    pod: Pod
    cost: ImageCost
    cached_share: float = 0.0
    command: str = ""


def plan_capacity(
    images_per_s: float,
    pod: Pod,
    cost: ImageCost,
    *,
    stored: StoredImages | None = None,
    short_side: int | None = None,
    other_loaders: Mapping[str, ImageCost] | None = None,
) -> CapacityPlan:
    """Compare what the accelerator needs from its hosts with what they have.

    Args:
        images_per_s: Rate that the accelerator takes from all hosts.
        pod: The hosts.
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
    """Return what a rate needs, and what the hosts have.

    Args:
        images_per_s: Rate of all hosts.
        pod: The hosts.
        cost: Cost of an image.
        cached_share: Share of the bytes that a host reads from its own memory.
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
    """Return the plan in one sentence."""
    short = next(resource for resource in plan.resources if resource.name == plan.limit)
    ratio = f"{_number(short.needed)} {short.unit} needed{_where(short)}, {_number(short.available)} available"
    least = "at least " if short.at_least else ""
    if plan.verdict == "fed":
        return (
            f"{accelerator} is fed with {least}{_number(plan.headroom)}-fold headroom: "
            f"{_number(plan.host_images_per_s)} images/s needed per host; "
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
        f"Cannot tell whether {accelerator} is fed: {_number(short.needed)} Gbit/s are needed{_where(short)}, the "
        f"hosts' network is not published, and only {_number(short.available)} are certain; measure it and give "
        "--host-gbps."
    )


def _judge(resources: tuple[Resource, ...]) -> tuple[Verdict, Resource]:
    """Return the verdict and the resource that decides it; one certainly short precedes one that may be short."""
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
    if stored and stored.short_side and short_side and short_side < stored.short_side:
        # Bytes and decoding shrink with the pixels: 0.41 of the pixels had 0.40 of the bytes at JPEG quality 95.
        kept = (short_side / stored.short_side) ** 2
        smaller = replace(cost, cpu_ms=cost.cpu_ms - cost.stored_ms * (1 - kept), num_bytes=cost.num_bytes * kept)
        change = f"store a shorter side of {short_side} (dataprep convert)"
        yield _Change("resize", change, pod, smaller, command=_conversion(stored.url or "URL", short_side))
    if stored:
        # Every pass gives a host other blocks, so what counts is the share of the whole dataset that it holds.
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
        command=change.command,
    )


def _conversion(url: str, short_side: int) -> str:
    """Return the command that makes a dataset with smaller images of the one at a URL."""
    url = url.rstrip("/")
    words = ["dataprep", "convert", url, "--output", f"{url}-{short_side}", "--format", "webdataset"]
    return shell_words(*words, "--resize", short_side)


def _known(resources: tuple[Resource, ...]) -> list[Resource]:
    return [resource for resource in resources if not resource.at_least]


def _headroom(resource: Resource) -> float:
    return resource.headroom


def _named(resource: Resource) -> str:
    """Return a resource's name for the sentence of the verdict."""
    return {
        "cores": "the hosts' CPU",
        "workers": "what the loader uses of the hosts' CPU, one core per worker,",
        "serial stage": "the loader's serial stage",
        "network": "the hosts' network",
        "bucket": "the bucket",
    }[resource.name]


def _where(resource: Resource) -> str:
    return "" if resource.name == "bucket" else " per host"


def _number(value: float) -> str:
    """Return a number with three significant digits, or all digits of its whole part."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
