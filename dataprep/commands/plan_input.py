"""`dataprep plan-input`: whether the hosts of a TPU can feed it, and what would change that."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.text import Text

from dataprep.arguments import StrictCommand
from dataprep.cloud.accelerators import (
    Accelerator,
    TpuMachine,
    generations,
    parse_accelerator,
    there_are_tpus,
    zone_note,
)
from dataprep.cloud.prices import published_prices, read_prices
from dataprep.cloud.ways import Use
from dataprep.commands.model_sizes import image_size_of
from dataprep.commands.options import COUNT, Bytes, Finite, json_option
from dataprep.commands.plan_data import GIVEN, MEAN_OF, STORED_SIDES, PlannedData
from dataprep.commands.plan_hosts import CoreSpeed, enough_hosts, hosts_document, hosts_notes, hosts_table
from dataprep.commands.plan_places import PricedPlaces, cache_gbps, parse_location, priced_places, print_places
from dataprep.commands.plan_report import SCHEMA_VERSION, Deliverable, Found, pack_lines, print_found
from dataprep.commands.plan_requests import BucketLoad
from dataprep.commands.region_options import months_option, named_place, objects_option, prices_option
from dataprep.errors import UndecidedError, UsageError
from dataprep.host.piped import open_console, print_table
from dataprep.messages import shell_words

if TYPE_CHECKING:
    from loaders.capacity.plan import ImageCost, Pod

EPILOG = """\b
Examples:
  dataprep plan-input --accelerator v4-32 --model resnet50 --images-per-s 32000
  dataprep plan-input --accelerator v3-256 --model mae_vit_large_patch16_dec512d16h8b \\
    --step-ms 1000 --global-batch 4096 --dataset coco-dup5
  dataprep plan-input --accelerator v3-128 --model resnet50 --images-per-s 44800 \\
    --loader torchvision --workers 4
  dataprep plan-input --accelerator tpu7x-2x2x4 --model vit_large --images-per-s 60000 \\
    --measured bench.json --json | jq .plan.verdict
  dataprep plan-input --accelerator v6e-8 --model vit_large --images-per-s 6000 \\
    --bucket-location US --zone us-central1-b --epochs 90
  dataprep plan-input --accelerator v6e-8 --model vit_large --images-per-s 6000 --epochs 90 --chip-hour-usd 2.7
  dataprep plan-input --accelerator v6e-8 --model vit_large --images-per-s 6000 --epochs 90       how many hours
  dataprep plan-input --bucket-location US --zone us-central1-b --epochs 90
  dataprep plan-input --accelerator all --model resnet50 --images-per-s 32000

Exit codes: 0 fed, listed, or only priced, 1 input-bound, 2 usage or input, 3 undecided.
"""
_EXIT_CODES = {"fed": 0, "input-bound": 1, "unknown": 3}
_LOADERS = ("dataprep", "torchvision", "webdataset", "tf.data", "mosaic", "grain")
_AS_MEASURED = "assumed, because the core that measured is not known: --core-speed"
"""Basis of the speed of the hosts' cores where the cost of an image is the user's."""
_RATE_IS_MISSING = (
    "the images/s of the accelerator are missing: give --images-per-s, or --step-ms and --global-batch; "
    "`dataprep diagnose URL --model NAME` measures it on one host"
)
_ALL = "all"
"""Value of --accelerator for all kinds of hosts."""
_OPTIONS_OF_ONE = {
    "dataset_bytes", "images", "objects", "stored_side", "resize", "vcpus", "host_gbps", "bucket_gbps",
    "bucket_location", "zone", "epochs", "chip_hour_usd", "months", "prices_file", "cache", "hns",
}  # fmt: skip
"""Parameters that are about one TPU, its bucket or its dataset, and change nothing where all are listed."""
_PRICE_OPTIONS = {
    "bucket_location", "zone", "epochs", "months", "hns", "prices_file", "dataset", "dataset_bytes", "images",
    "objects", "bytes_per_image", "as_json",
}  # fmt: skip
"""Parameters on which the price of reading depends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Options:
    """The command's options; None for one that was not given."""

    accelerator: str | None
    model: str | None
    images_per_s: float | None
    step_ms: float | None
    global_batch: int | None
    image_size: int | None
    dataset: str
    dataset_bytes: int | None
    images: int | None
    objects: int | None
    bytes_per_image: int | None
    stored_side: int | None
    resize: int | None
    loader: str
    workers: int | None
    measured: Path | None
    cpu_ms_per_image: float | None
    serial_ms_per_image: float
    vcpus: int | None
    core_speed: float | None
    vcpu_speed: float | None
    usable_share: float | None
    host_gbps: float | None
    bucket_gbps: float | None
    bucket_location: str | None
    zone: str | None
    epochs: int
    chip_hour_usd: float | None
    months: float
    prices_file: Path | None
    cache: bool
    hns: bool

    @property
    def data(self) -> PlannedData:
        """What the options say of the data."""
        return PlannedData(
            dataset=self.dataset,
            given_bytes=self.dataset_bytes,
            images=self.images,
            bytes_per_image=self.bytes_per_image,
            objects=self.objects,
        )


_ABOVE_0 = Finite(min=0, min_open=True)
_AT_LEAST_1 = COUNT
_SHARE = Finite(min=0, min_open=True, max=1)


def _above_0_bytes(_context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    if value == 0:
        raise click.BadParameter("got 0 bytes, expected 1 or more", param=parameter)
    return value


@click.command("plan-input", cls=StrictCommand, epilog=EPILOG)
@click.option(
    "--accelerator",
    "--tpu",
    "accelerator",
    metavar="TYPE",
    help="TPU, such as v3-256, v5litepod-64, v4:2x2x4, tpu7x-2x2x4; or all, which lists the smallest TPU of each kind "
    "whose hosts deliver the rate. Without one, only the reading is priced.",
)
@click.option("--model", metavar="NAME", help="Model whose recipe determines the image size.")
@click.option("--images-per-s", type=_ABOVE_0, help="Images a second that the accelerator takes on all hosts together.")
@click.option(
    "--step-ms", type=_ABOVE_0, help="Milliseconds of a step that does not wait for data, instead of --images-per-s."
)
@click.option("--global-batch", type=_AT_LEAST_1, help="Images in a step on all hosts together; with --step-ms.")
@click.option("--image-size", type=_AT_LEAST_1, help="Sides of the cropped images, in pixels, instead of the model's.")
@click.option(
    "--dataset", type=click.Choice(list(STORED_SIDES)), default="imagenet", show_default=True,
    help="Dataset whose size and image sizes are assumed; of imagenet-21k only the number of images is known.",
)  # fmt: skip
@click.option(
    "--dataset-bytes",
    "--bytes",
    "dataset_bytes",
    type=Bytes(),
    callback=_above_0_bytes,
    help="Size of another dataset's stored images, as 500GB.",
)
@click.option(
    "--images",
    metavar="N",
    type=_AT_LEAST_1,
    help="Number of another dataset's stored images.  [default: --dataset-bytes / --bytes-per-image]",
)
@objects_option
@click.option(
    "--bytes-per-image",
    type=Bytes(),
    callback=_above_0_bytes,
    help="Mean size of a stored image, as 110kB.  [default: --dataset-bytes / --images, else that of "
    "--measured, else of objects smaller than 2 MiB, else of --dataset]",
)
@click.option("--stored-side", type=_AT_LEAST_1, help="Mean shorter side of the stored images, in pixels.")
@click.option(
    "--resize",
    type=_AT_LEAST_1,
    metavar="PIXELS",
    help="Shorter side for which the gain of a resize at build time is shown.  [default: 8/7 of --image-size]",
)
@click.option(
    "--loader", type=click.Choice(_LOADERS), default="dataprep", show_default=True, help="Loader that is used."
)
@click.option("--workers", type=_AT_LEAST_1, help="Processes of the loader on a host.  [default: one for each core]")
@click.option(
    "--measured",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON of dataprep bench or diagnose, from which CPU time and bytes of an image are taken.",
)
@click.option(
    "--cpu-ms-per-image", type=_ABOVE_0, help="CPU time of an image on one core, instead of the measured figures."
)
@click.option(
    "--serial-ms-per-image",
    type=Finite(min=0),
    default=0.0,
    help="Time that an image takes in a stage of a single thread.",
)
@click.option("--vcpus", type=_AT_LEAST_1, help="vCPUs of a host, instead of the table's number.")
@click.option(
    "--core-speed",
    type=_ABOVE_0,
    help="Speed of a host's core, as a share of the core on which CPU time was measured.  [default: a figure for each "
    "TPU generation; with --measured or --cpu-ms-per-image 1]",
)
@click.option(
    "--vcpu-speed", type=_ABOVE_0, help="Speed of a vCPU, as a share of a core of the same host.  [default: 0.6]"
)
@click.option(
    "--usable-share",
    type=_SHARE,
    help="Share of vCPUs and of the published bandwidth that input may use.  [default: 0.8]",
)
@click.option("--host-gbps", type=_ABOVE_0, help="Measured bandwidth of a host, in Gbit/s; all of it is counted.")
@click.option("--bucket-gbps", type=_ABOVE_0, help="Bandwidth of the bucket for all hosts together, in Gbit/s.")
@click.option(
    "--bucket-location",
    metavar="PLACE",
    help="Region, zone, dual-region or multi-region of the bucket, to price the reading; also REGION+REGION.",
)
@click.option(
    "--zone",
    metavar="ZONE",
    help="Zone of the TPU, to price the reading; a note says if it is not known to have this TPU.",
)
@click.option("--epochs", type=_AT_LEAST_1, default=1, show_default=True, help="Epochs to time and to price.")
@click.option(
    "--chip-hour-usd",
    type=_ABOVE_0,
    help="Price of a chip for an hour, to price --epochs of training; cloud.google.com/tpu/pricing has it.",
)
@months_option
@prices_option
@click.option("--cache", is_flag=True, help="Count the bandwidth of a Rapid Cache in the TPU's zone.")
@click.option("--hns", is_flag=True, help="Assume a bucket with a hierarchical namespace.")
@json_option
@click.pass_context
def command(context: click.Context, /, as_json: bool, **given: Any) -> None:
    """Compare what an accelerator needs with what its hosts have: cores, network, bucket.

    The cost of an image comes from dataprep's own measurements unless yours are given. `dataprep diagnose` measures on
    one host how many images a second the accelerator takes; multiply that by the number of hosts.
    """
    options = _Options(**given | {"zone": named_place(given["zone"], None)})
    if options.accelerator is None:
        context.exit(_price(context, options, as_json=as_json))
    if options.accelerator.strip().lower() == _ALL:
        context.exit(_list(context, options, as_json=as_json))
    accelerator = parse_accelerator(options.accelerator)
    if _only_price_is_known(options):
        deliverable = _deliverable(options, accelerator)
        _print_price(options, deliverable, as_json=as_json)
        undecided = (
            "only the reading is priced" if deliverable is None else "whether the hosts are fast enough is not known"
        )
        raise UndecidedError(f"{undecided}, because {_RATE_IS_MISSING}")
    found = _plan(options, accelerator)
    if as_json:
        click.echo(json.dumps(found.document()))
    else:
        print_found(found)
    context.exit(_EXIT_CODES[found.plan.verdict])


def _price(context: click.Context, options: _Options, *, as_json: bool) -> int:
    """Print what the reading costs, for any accelerator, and return the exit code."""
    if given := [option for name, option in _given_options(context).items() if name not in _PRICE_OPTIONS]:
        raise UsageError(f"{given[0]} is about a TPU; add --accelerator; {there_are_tpus()}")
    if options.bucket_location is None and options.zone is None:
        raise UsageError(
            "give --accelerator, or --bucket-location and --zone for the price of reading alone; " + there_are_tpus()
        )
    places = _print_price(options, None, as_json=as_json)
    return 0 if places.ways else _EXIT_CODES["unknown"]


def _print_price(options: _Options, deliverable: Deliverable | None, *, as_json: bool) -> PricedPlaces:
    """Print what the reading costs, and what the hosts deliver if that is known; return the costs."""
    num_bytes = options.dataset_bytes or options.data.num_bytes(options.data.any_bytes_per_image)
    places = _priced(options, num_bytes)
    if as_json:
        known = {} if deliverable is None else {"deliverable": deliverable.document()}
        click.echo(json.dumps({"schema_version": SCHEMA_VERSION, "places": places.document(), **known}))
    else:
        print_places(open_console(), places)
        lines = [] if deliverable is None else ["", *deliverable.lines]
        load = None if deliverable is None else deliverable.load
        for line in (*lines, *pack_lines(load, places)):
            click.echo(line)
    return places


def _deliverable(options: _Options, accelerator: Accelerator) -> Deliverable | None:
    """Return what an accelerator's hosts deliver, whatever rate it takes; None if nothing says the image size."""
    from loaders.capacity.plan import plan_capacity

    try:
        image_size = _image_size(options)
    except UsageError:
        return None
    costs = _costs(options, accelerator.generation.name, image_size)
    num_bytes = options.data.num_bytes(costs.chosen.num_bytes)
    pod = _pod(options, accelerator.machine, hosts=accelerator.hosts, num_bytes=num_bytes)
    plan = plan_capacity(1.0, pod, costs.chosen)
    return Deliverable(
        hosts=pod.hosts,
        cost=costs.chosen,
        bytes_source=costs.bytes_source,
        image_size=image_size,
        core_is_unknown=costs.core_basis == _AS_MEASURED,
        plan=plan,
        load=BucketLoad(
            images_per_s=plan.images_per_s,
            bytes_per_image=costs.chosen.num_bytes,
            num_bytes=num_bytes,
            objects=options.objects,
            hns=options.hns,
        ),
    )


def _given_options(context: click.Context) -> dict[str, str]:
    """Return the options on the command line, by their parameters' names."""
    return {
        parameter.name or "": parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }


def _list(context: click.Context, options: _Options, *, as_json: bool) -> int:
    """Print the smallest TPU of each kind of host that delivers the rate, and return the exit code."""
    if given := [option for name, option in _given_options(context).items() if name in _OPTIONS_OF_ONE]:
        raise UsageError(f"{given[0]} is about one TPU; give its name instead of --accelerator all")
    images_per_s, image_size = _images_per_s(options), _image_size(options)
    costs = {name: _costs(options, name, image_size) for name in generations()}

    def pod_of(machine: TpuMachine) -> Pod:
        return _pod(options, machine, hosts=1, num_bytes=costs[machine.generation].chosen.num_bytes)

    found = enough_hosts(images_per_s, {name: each.chosen for name, each in costs.items()}, pod_of)
    speeds = {name: CoreSpeed(each.core_speed, each.core_basis) for name, each in costs.items()}
    if as_json:
        asked = {"images_per_s": images_per_s, "image_size": image_size, "loader": options.loader}
        click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **asked, **hosts_document(found, speeds)}))
    else:
        console = open_console()
        title = f"Hosts for {images_per_s:,.0f} images/s of {image_size} pixels with {options.loader}"
        print_table(console, hosts_table(title, found))
        console.print()
        for line in hosts_notes(found, speeds):
            console.print(Text(line))
    return 0 if any(row.accelerator for row in found) else _EXIT_CODES["input-bound"]


def _plan(options: _Options, accelerator: Accelerator) -> Found:
    from loaders.capacity.plan import StoredImages, plan_capacity

    for line in (accelerator.note, zone_note(accelerator, options.zone) if options.zone else ""):
        if line:
            click.echo(f"note: {line}", err=True)
    images_per_s = _images_per_s(options)
    image_size = _image_size(options)
    data = options.data
    costs = _costs(options, accelerator.generation.name, image_size)
    stored = StoredImages(
        num_bytes=data.num_bytes(costs.chosen.num_bytes),
        short_side=options.stored_side or data.short_side,
        url=costs.url,
    )
    if options.resize and stored.short_side is None:
        raise UsageError(f"--resize {options.resize}: the sides of {options.dataset} are not known; give --stored-side")
    if options.resize and stored.short_side and options.resize >= stored.short_side:
        raise UsageError(
            f"got --resize {options.resize}, expected less than the {stored.short_side} pixels that the shorter side "
            "of the stored images has; see --stored-side"
        )
    pod = _pod(options, accelerator.machine, hosts=accelerator.hosts, num_bytes=stored.num_bytes)
    return Found(
        accelerator=accelerator,
        pod=pod,
        cost=costs.chosen,
        cost_source=costs.source,
        processor=costs.processor,
        core_speed=costs.core_speed,
        core_basis=costs.core_basis,
        core_is_unknown=costs.core_basis == _AS_MEASURED,
        bytes_source=costs.bytes_source,
        model=options.model,
        image_size=image_size,
        data=data,
        bytes_are_assumed=bool(options.dataset_bytes or options.images) and costs.bytes_source.startswith(MEAN_OF),
        hns=options.hns,
        stored=stored,
        epochs=options.epochs,
        chip_hour_usd=options.chip_hour_usd,
        plan=plan_capacity(
            images_per_s,
            pod,
            costs.chosen,
            stored=stored,
            short_side=options.resize or -(-image_size * 8 // 7),
            other_loaders=costs.others,
        ),
        places=_priced(options, stored.num_bytes) if options.bucket_location is not None else None,
    )


def _priced(options: _Options, num_bytes: float) -> PricedPlaces:
    if options.bucket_location is None or options.zone is None:
        raise UsageError("to price the reading, give both --bucket-location and --zone")
    use = Use(passes=options.epochs * options.data.repeats, months=options.months)
    prices = published_prices() if options.prices_file is None else read_prices(options.prices_file)
    bucket = parse_location(options.bucket_location, hns=options.hns)
    return priced_places(bucket, options.zone, round(num_bytes), use, prices, objects=options.objects)


def _only_price_is_known(options: _Options) -> bool:
    """Return whether nothing says the accelerator's rate, but the price of the reading can be calculated without it."""
    is_rate_given = any(each is not None for each in (options.images_per_s, options.step_ms, options.global_batch))
    is_priced = options.bucket_location is not None and options.zone is not None and options.measured is None
    return is_priced and not is_rate_given


def _images_per_s(options: _Options) -> float:
    if options.images_per_s is not None:
        if options.step_ms is not None or options.global_batch is not None:
            raise UsageError("got --images-per-s and a step; give --images-per-s, or --step-ms and --global-batch")
        return options.images_per_s
    if options.step_ms is None or options.global_batch is None:
        raise UsageError(_RATE_IS_MISSING)
    return options.global_batch / (options.step_ms * 1e-3)


def _image_size(options: _Options) -> int:
    return image_size_of(options.model or "") if options.image_size is None else options.image_size


@dataclass(frozen=True, kw_only=True, slots=True)
class _Costs:
    """What an image costs on the hosts."""

    chosen: ImageCost
    """Cost of the loader that is used."""
    others: dict[str, ImageCost]
    """Known costs of other loaders, by name."""
    source: str
    """Where these figures come from."""
    processor: str
    """Processor of the hosts; empty if no source states it."""
    core_speed: float
    """Speed of the hosts' cores, as a share of the one on which the chosen loader was measured."""
    core_basis: str
    """What that speed rests on."""
    bytes_source: str
    """Where the bytes of an image come from."""
    url: str | None
    """The dataset with which they were measured, if that is known."""


def _costs(options: _Options, generation: str, image_size: int) -> _Costs:
    from loaders.capacity.host_cores import cost_on_host, host_cores
    from loaders.capacity.input_costs import cost_from_table, costs_from_document, measured_cost, measured_here

    bytes_per_image, bytes_source, url = options.data.given_bytes_per_image, GIVEN, None
    hosts = host_cores()[generation]
    core_speed, core_basis = 1.0, _AS_MEASURED
    if options.measured is not None:
        measured = costs_from_document(_document(options.measured), options.measured.name)
        if measured.image_size not in (None, image_size):
            raise UsageError(
                f"{options.measured.name} was measured at {measured.image_size} pixels, the model takes {image_size}; "
                f"measure with --image-size {shell_words(image_size)}"
            )
        costs, source, url = dict(measured.costs), options.measured.name, measured.url
        if bytes_per_image:
            costs = {name: replace(cost, num_bytes=bytes_per_image) for name, cost in costs.items()}
        else:
            bytes_source = source
    else:
        row = measured_here()["dataprep"][0]
        if bytes_per_image is None:
            bytes_per_image, bytes_source = options.data.assumed_bytes_per_image
        costs, source = {}, f"measured {row.date} on {row.machine}"
        core_speed, core_basis = hosts.speed, f"{hosts.basis}: {hosts.ground}"
        for name in _LOADERS:
            try:
                costs[name] = cost_from_table(name, image_size, bytes_per_image)
            except UndecidedError:
                if name == options.loader and options.cpu_ms_per_image is None:
                    raise
    if options.core_speed is not None:
        core_speed, core_basis = options.core_speed, GIVEN
    costs = {name: cost_on_host(cost, core_speed) for name, cost in costs.items()}
    if options.cpu_ms_per_image is not None:
        num_bytes = costs.get(options.loader, next(iter(costs.values()))).num_bytes
        if options.core_speed is None:
            core_speed, core_basis = 1.0, _AS_MEASURED
        given = measured_cost(options.loader, options.cpu_ms_per_image, num_bytes)
        costs[options.loader], source = cost_on_host(given, core_speed), GIVEN
    if options.loader not in costs:
        raise UsageError(f"{source} has no {options.loader}; it has {', '.join(costs)}")
    chosen = replace(costs.pop(options.loader), serial_ms=options.serial_ms_per_image)
    return _Costs(
        chosen=chosen,
        others=costs,
        source=source,
        processor=hosts.processor,
        core_speed=core_speed,
        core_basis=core_basis,
        bytes_source=bytes_source,
        url=url,
    )


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--measured {path}: cannot be read as JSON: {error}") from error


def _pod(options: _Options, machine: TpuMachine, *, hosts: int, num_bytes: float) -> Pod:
    from loaders.capacity.plan import USABLE_SHARE, VCPU_SPEED, Pod

    vcpus = options.vcpus or machine.vcpus
    if vcpus is None:
        raise UsageError(f"the vCPUs of {machine.machine_type} are not known; give --vcpus")
    return Pod(
        hosts=hosts,
        vcpus=vcpus,
        ram_bytes=machine.ram_gb * 1e9,
        nic_gbps=machine.nic_gbps,
        measured_gbps=options.host_gbps,
        workers=options.workers,
        bucket_gbps=options.bucket_gbps or (cache_gbps(num_bytes) if options.cache else None),
        usable_share=options.usable_share or USABLE_SHARE,
        vcpu_speed=options.vcpu_speed or VCPU_SPEED,
    )
