"""`dataprep plan-input`: whether the hosts of a TPU can feed it, and what would change that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Literal, get_args

import click
from rich.table import Table
from rich.text import Text

from dataprep.arguments import (
    IMAGES,
    OTHER,
    READ,
    WHERE,
    Request,
    command_of,
    function_of,
    option,
    request,
    spelled,
    spelled_document,
)
from dataprep.cloud import capacity
from dataprep.cloud.accelerators import Accelerator, TpuMachine, generations, parse_accelerator
from dataprep.cloud.cost import READ_BYTES, gets_of, is_loose
from dataprep.cloud.prices import fact
from dataprep.commands.progress import PYTHON, Viewer, people
from dataprep.errors import UndecidedError, UsageError
from dataprep.host.piped import open_console, print_table
from dataprep.messages import command_line, counted, human_bytes
from dataprep.sources import DATASETS

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
SCHEMA_VERSION = 1
ALL = "all"
"""Name that means every TPU."""
Loader = Literal["dataprep", "torchvision", "webdataset", "tf.data", "mosaic", "grain"]
STORED_SIDES = {"imagenet": 387, "imagenet-21k": None, "coco": 480, "coco-dup5": 480}
"""Shorter side of the images of each dataset with a published number of them, in pixels; None if it is not known.
ImageNet's mean image has 469 x 387, COCO's usual one 640 x 480."""
PACK = command_line("build", "folder", source="gs://BUCKET/PICTURES", output="gs://BUCKET/DATASET", format="webdataset")
"""Command that packs loose pictures into shards; the plan knows no URL."""
GIVEN, MEAN_OF = "given", "mean of"
"""Sources of the bytes of an image: the request, and a dataset or the objects."""
_AS_MEASURED = "assumed, because the core that measured is not known"
"""Basis of the speed of the hosts' cores if the cost of an image is the user's."""


@request
class InputRequest(Request):
    """Compare what an accelerator needs with what its hosts have: cores, network, bucket.

    The cost of an image comes from dataprep's own measurements, unless you give yours. `dataprep diagnose` measures how
    many images per second the accelerator takes on one host; multiply that by the number of hosts.
    """

    accelerator: str = option(
        "TPU, such as v3-256, v5litepod-64, v4:2x2x4, tpu7x-2x2x4; or all, to list the smallest TPU of each kind "
        "whose hosts deliver the rate.",
        metavar="TYPE",
        group=WHERE,
    )
    images_per_s: float = option(
        "Images per second that the accelerator takes on all hosts together: the global batch size divided by the "
        "time of a step that does not wait for data, in seconds.",
        low=0,
        open_low=True,
        group=WHERE,
    )
    image_size: int = option("Side of the cropped images, in pixels.", default=224, low=1, group=IMAGES)
    dataset: Literal["imagenet", "imagenet-21k", "coco", "coco-dup5"] = option(
        "Dataset whose size and image sizes are assumed; for imagenet-21k, only the number of images is known.",
        default="imagenet",
        group=READ,
    )
    dataset_bytes: int | str | None = option(
        "Size of all images, such as 500GB, for a dataset that is not in the list.",
        default=None,
        size=True,
        low=1,
        group=READ,
    )
    images: int | None = option(
        "Number of images, for a dataset that is not in the list.", default=None, low=1, metavar="N", group=READ
    )
    objects: int | None = option(
        "Number of objects that hold the data, such as loose pictures; each costs a request when it is read.",
        default=None,
        low=1,
        metavar="N",
        shown="objects of 256 MiB",
        group=READ,
    )
    loader: Loader = option("Loader to assume.", default="dataprep", group=IMAGES)
    measured: Path | None = option(
        "JSON of dataprep bench or diagnose, with the CPU time and bytes per image.",
        default=None,
        metavar="FILE",
        group=IMAGES,
    )
    host_gbps: float | None = option(
        "Measured bandwidth of a host, in Gbit/s; counted in full.",
        default=None,
        low=0,
        open_low=True,
        group=WHERE,
    )
    bucket_gbps: float | None = option(
        "Bandwidth of the bucket for all hosts together, in Gbit/s.", default=None, low=0, open_low=True, group=READ
    )
    epochs: int = option("Epochs whose time is calculated.", default=1, low=1, group=OTHER)

    @property
    def given_bytes(self) -> int | None:
        """Size of all images, if it is given."""
        return None if self.dataset_bytes is None else int(self.dataset_bytes)

    @property
    def image_bytes(self) -> tuple[float, str]:
        """Bytes of an image, and their source.

        Raises:
            UsageError: The dataset's bytes were not published, and no other figure stands in for them.
        """
        if self.given_bytes and self.images:
            return self.given_bytes / self.images, GIVEN
        if self.given_bytes and self.objects and is_loose(self.given_bytes, self.objects):
            return self.given_bytes / self.objects, f"{MEAN_OF} the objects"
        num_bytes = self._archive_bytes or self.given_bytes
        if num_bytes is None:
            raise UsageError(
                f"the bytes of the {self._samples:,} images of {self.dataset} were not published; give `dataset_bytes`"
            )
        return num_bytes / self._samples, f"{MEAN_OF} {self.dataset}"

    @property
    def repeats(self) -> int:
        """Passes over the data that make one epoch."""
        return 1 if self.given_bytes or self.images else DATASETS[self.dataset].facts["train"].repeats

    @property
    def epoch_images(self) -> int | None:
        """Images of an epoch; None if only the data's size is known."""
        return self.images or (None if self.given_bytes else self._samples * self.repeats)

    def num_bytes(self, bytes_per_image: float) -> float:
        """Return the size of one pass over the data."""
        return self.given_bytes or (self.images or self._samples) * bytes_per_image

    @property
    def _samples(self) -> int:
        return DATASETS[self.dataset].facts["train"].samples or 0

    @property
    def _archive_bytes(self) -> int:
        """Bytes of the archives of images; an archive of several splits has none (COCO's annotations)."""
        facts = DATASETS[self.dataset].facts
        shared = {each.name for name, found in facts.items() if name != "train" for each in found.archives}
        return sum(each.num_bytes or 0 for each in facts["train"].archives if each.name not in shared)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCost:
    """Cost of an image on the hosts, and the basis of its figures."""

    image: capacity.ImageCost
    others: Mapping[str, capacity.ImageCost]
    """Known costs of other loaders, by name."""
    source: str
    """Measurement that the cost comes from."""
    processor: str
    """Processor of the hosts; empty if no source states it."""
    core_speed: float
    """Speed of the hosts' cores, as a share of the measuring core's."""
    core_basis: str
    """Basis of that speed."""
    bytes_source: str
    """Source of the bytes of an image."""
    url: str | None
    """The dataset that the cost was measured with, if it is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketLoad:
    """Requests that a bucket gets while a dataset is read at some rate."""

    images_per_s: float
    """Rate of all hosts together."""
    bytes_per_image: float
    num_bytes: float
    """Size of one pass over the data."""
    objects: int | None
    """Number of objects, all of one size; None for shards that are much larger than a read."""

    @property
    def requests_per_s(self) -> float:
        """Requests a second that the bucket gets at the rate."""
        gets = self.num_bytes / READ_BYTES if self.objects is None else gets_of(round(self.num_bytes), self.objects)
        return self.images_per_s * gets * self.bytes_per_image / self.num_bytes

    @property
    def first_requests_per_s(self) -> float:
        """Requests a second that a new bucket serves before it has grown."""
        return fact("first_requests_per_s")

    @property
    def line(self) -> str:
        """Bandwidth and requests, with a note if a new bucket does not serve as many."""
        first = self.first_requests_per_s
        grows = f", beyond the {first:,.0f} of a bucket that has not grown yet" if self.requests_per_s > first else ""
        size = human_bytes(self._object_bytes) if self._is_loose else f"{READ_BYTES >> 20} MiB"
        gbps = self.images_per_s * self.bytes_per_image * 8e-9
        return f"{gbps:,.2f} Gbit/s in {self.requests_per_s:,.0f} requests/s of {size}{grows}"

    @property
    def loose(self) -> str:
        """Sentence about objects that are read with more requests than a new bucket serves; empty if they are not."""
        if not self._is_loose or self.requests_per_s <= self.first_requests_per_s:
            return ""
        in_shards = self.images_per_s * self.bytes_per_image / READ_BYTES
        return (
            f"However, objects of {human_bytes(self._object_bytes)} need {self.requests_per_s:,.0f} requests/s, but a "
            f"bucket serves only about {self.first_requests_per_s:,.0f} at first, and more as the load grows: pack "
            f"them into shards (dataprep build folder), which need {in_shards:,.0f}."
        )

    def document(self) -> dict[str, object]:
        """Return the requests as JSON values, which docs/capacity.md describes."""
        return {
            "requests_per_s": self.requests_per_s,
            "first_requests_per_s": self.first_requests_per_s,
            "command": PACK if self.loose else None,
        }

    @property
    def _object_bytes(self) -> float:
        return self.num_bytes / (self.objects or 1)

    @property
    def _is_loose(self) -> bool:
        return self.objects is not None and is_loose(self.num_bytes, self.objects)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingTime:
    """Training time of an accelerator, without evaluations and interruptions."""

    epochs: int
    images: int
    """Images of all epochs."""
    hours: float
    waiting_hours: float
    """Part of `hours` that the accelerator waits for images."""
    chip_hours: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EnoughTpus:
    """The smallest TPU of each kind of host that delivers a rate."""

    request: InputRequest
    images_per_s: float
    found: list[capacity.EnoughHosts]
    speeds: dict[str, tuple[float, str]]
    """Speed of a host's core by TPU generation, and its basis."""

    def document(self) -> dict[str, object]:
        """Return the rows as JSON values, which docs/capacity.md describes."""
        asked = {"image_size": self.request.image_size, "loader": self.request.loader}
        return {
            "schema_version": SCHEMA_VERSION,
            "images_per_s": self.images_per_s,
            **asked,
            "tpus": [
                {
                    "accelerator": row.accelerator.name,
                    "hosts": row.accelerator.hosts,
                    "machine_type": row.machine.machine_type,
                    "generation": row.machine.generation,
                    "host_images_per_s": row.host_images_per_s,
                    "headroom": row.plan.headroom,
                    "limit": row.plan.limit,
                    "at_least": row.at_least,
                }
                for row in self.found
                if row.accelerator is not None and row.plan is not None
            ],
            "left_out": {row.machine.machine_type: row.reason for row in self.found if row.accelerator is None},
            "cores": {name: {"core_speed": speed, "core_basis": basis} for name, (speed, basis) in self.speeds.items()},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class InputPlan:
    """A plan for one TPU, and the figures on which it is based."""

    request: InputRequest
    accelerator: Accelerator
    pod: capacity.Pod
    cost: HostCost
    stored: capacity.StoredImages
    plan: capacity.CapacityPlan

    @property
    def sentence(self) -> str:
        """The verdict."""
        sentence = capacity.verdict_sentence(self.plan, self.accelerator.name)
        by_cores = self.plan.verdict == "fed" or self.plan.limit == "cores"
        if self.cost.core_basis == _AS_MEASURED and by_cores:
            sentence = f"If a host's core is as fast as yours, {sentence}"
        return f"{sentence} {self.load.loose}" if self.load.loose else sentence

    @property
    def load(self) -> BucketLoad:
        """Requests that the bucket serves at the required rate."""
        return BucketLoad(
            images_per_s=self.plan.asked_images_per_s,
            bytes_per_image=self.cost.image.num_bytes,
            num_bytes=self.stored.num_bytes,
            objects=self.request.objects,
        )

    @property
    def training(self) -> TrainingTime | None:
        """Training time at the rate that the hosts certainly deliver; None for a single epoch."""
        epochs = self.request.epochs
        if epochs == 1:
            return None
        per_epoch = self.request.epoch_images or round(self.stored.num_bytes / self.cost.image.num_bytes)
        hours = epochs * per_epoch / (self.plan.asked_images_per_s * self.plan.utilisation) / 3600
        return TrainingTime(
            epochs=epochs,
            images=epochs * per_epoch,
            hours=hours,
            waiting_hours=hours * (1 - self.plan.utilisation),
            chip_hours=hours * self.accelerator.chips,
        )

    @property
    def not_counted(self) -> list[str]:
        """Resources that the verdict leaves out, each with the amount that is needed."""
        if self.pod.bucket_gbps:
            return []
        gbps = self.plan.asked_images_per_s * self.cost.image.num_bytes * 8e-9
        return [
            f"the bucket's bandwidth: {gbps:,.2f} Gbit/s are needed from your project's quota of Google egress "
            "bandwidth in the bucket's location, which the console shows under IAM & Admin, Quotas; give it as "
            "`bucket_gbps`"
        ]

    def document(self) -> dict[str, object]:
        """Return the plan as JSON values, which docs/capacity.md describes."""
        accelerator, cost = self.accelerator, self.cost
        bases = ("source", "processor", "core_speed", "core_basis", "bytes_source")
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
                **asdict(cost.image),
                **{name: getattr(cost, name) for name in bases},
                "image_size": self.request.image_size,
            },
            "stored": asdict(self.stored),
            "bucket": self.load.document(),
            "training": asdict(self.training) if self.training else None,
            "plan": asdict(self.plan)
            | {"resources": [asdict(found) | {"headroom": found.headroom} for found in self.plan.resources]},
        }


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
    """Compare what an accelerator needs with what its hosts have.

    Raises:
        UsageError: A figure is missing, or contradicts another one.
        UndecidedError: A fact that the plan needs is not known.
    """
    if asked.accelerator.strip().lower() == ALL:
        return _all_tpus(asked)
    accelerator = parse_accelerator(asked.accelerator)
    cost = _host_cost(asked, accelerator.generation.name)
    stored = capacity.StoredImages(
        num_bytes=asked.num_bytes(cost.image.num_bytes), short_side=STORED_SIDES[asked.dataset], url=cost.url
    )
    pod = _pod(asked, accelerator.machine, accelerator.hosts)
    plan = capacity.plan_capacity(
        asked.images_per_s,
        pod,
        cost.image,
        stored=stored,
        short_side=-(-asked.image_size * 8 // 7),
        other_loaders=cost.others,
    )
    if accelerator.note:
        viewer.note(accelerator.note)
    return InputPlan(request=asked, accelerator=accelerator, pod=pod, cost=cost, stored=stored, plan=plan)


def _all_tpus(request: InputRequest) -> EnoughTpus:
    images_per_s = request.images_per_s
    plain = InputRequest(accelerator=ALL, images_per_s=images_per_s)
    about_one = ("dataset_bytes", "images", "objects", "host_gbps", "bucket_gbps", "epochs")
    for name in about_one:
        if getattr(request, name) != getattr(plain, name):
            raise UsageError(f"`{name}` applies to one TPU; give its name as `accelerator` instead of all")
    costs = {name: _host_cost(request, name) for name in generations()}
    return EnoughTpus(
        request=request,
        images_per_s=images_per_s,
        found=capacity.enough_hosts(
            images_per_s, {name: each.image for name, each in costs.items()}, partial(_pod, request)
        ),
        speeds={name: (each.core_speed, each.core_basis) for name, each in costs.items()},
    )


def _host_cost(request: InputRequest, generation: str) -> HostCost:
    """Return the cost of an image on the hosts of a TPU generation, by our measurements or the user's."""
    hosts, is_given = capacity.host_cores()[generation], bool(request.dataset_bytes and request.images)
    if request.measured is not None:
        found = capacity.cost_from_document(_document(request.measured), request.measured.name)
        if found.image_size not in (None, request.image_size):
            raise UsageError(
                f"{request.measured.name} was measured at {found.image_size} pixels, but `image_size` is "
                f"{request.image_size}; measure at that size"
            )
        if request.loader != found.cost.loader:
            raise UsageError(f"{request.measured.name} has no {request.loader}; it has {found.cost.loader}")
        name = request.measured.name
        image = replace(found.cost, num_bytes=request.image_bytes[0]) if is_given else found.cost
        return HostCost(
            image=image,
            others={},
            source=name,
            processor=hosts.processor,
            core_speed=1.0,
            core_basis=_AS_MEASURED,
            bytes_source=GIVEN if is_given else name,
            url=found.url,
        )
    bytes_per_image, bytes_source = request.image_bytes
    costs = {}
    for name in get_args(Loader):
        try:
            costs[name] = capacity.cost_on_host(
                capacity.cost_from_table(name, request.image_size, bytes_per_image), hosts.speed
            )
        except UndecidedError:
            if name == request.loader:
                raise
    row = capacity.measured_here()["dataprep"][0]
    return HostCost(
        image=costs.pop(request.loader),
        others=costs,
        source=f"measured {row.date} on {row.machine}",
        processor=hosts.processor,
        core_speed=hosts.speed,
        core_basis=f"{hosts.basis}: {hosts.ground}",
        bytes_source=bytes_source,
        url=None,
    )


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"`measured` {path}: cannot be read as JSON: {error}") from error


def _pod(request: InputRequest, machine: TpuMachine, hosts: int) -> capacity.Pod:
    if machine.vcpus is None:
        raise UndecidedError(f"the vCPUs of {machine.machine_type} are not known, so neither is what its hosts deliver")
    return capacity.Pod(
        hosts=hosts,
        vcpus=machine.vcpus,
        ram_bytes=machine.ram_gb * 1e9,
        nic_gbps=machine.nic_gbps,
        measured_gbps=request.host_gbps,
        bucket_gbps=request.bucket_gbps,
    )


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
        "counted": f"{capacity.USABLE_SHARE:.0%} of the vCPUs and promised network; a vCPU is a hyperthread, counted "
        f"as {capacity.VCPU_SPEED:g} of a host's core",
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
        processes = ceil(cores / capacity.VCPU_SPEED / 8)
        facts["loader"] = f"set processes={processes}: one interpreter hands out work for {_INTERPRETER_CORES} cores"
    return facts


def _training(plan: capacity.CapacityPlan, training: TrainingTime) -> str:
    """Return the time of the training, and how much of it is waiting."""
    tightest = plan.tightest
    text = f"{training.hours:,.1f} h for {counted(training.epochs, 'epoch')}, {training.chip_hours:,.1f} chip-hours"
    if plan.utilisation == 1:
        return f"{text}; no waiting for images"
    at_most = "at most " if tightest.at_least else ""
    return (
        f"{at_most}{text}; {training.waiting_hours:,.1f} h of them waiting for images, limited by the {tightest.name}"
    )


def _resources(plan: capacity.CapacityPlan) -> Table:
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


def _what_ifs(plan: capacity.CapacityPlan, changes: Sequence[capacity.WhatIf]) -> Table:
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


def _sign(resource: capacity.Resource) -> str:
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
