"""Argument lists of `gcloud` for TPUs, and the script that every worker runs at boot. Pure.

The lists are for the TPU API, queued resources, and Compute Engine. The script installs packages and mounts shares,
with retries.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

from dataprep.cloud.accelerators import Accelerator, zone_refusal
from dataprep.errors import UsageError

Api = Literal["tpu", "compute-engine"]
APIS = ("tpu", "compute-engine")
LABEL = "dataprep-tpu"
"""Label on every machine of Compute Engine, whose value is the name of its TPU."""
SCOPES = "https://www.googleapis.com/auth/cloud-platform"
TYPES_WITH_TOPOLOGY = ("v2", "v3", "v4")
"""Generations that `--type` of `gcloud compute tpus tpu-vm create` accepts (SDK 528); later ones are not accepted."""
IMAGE_PROJECT = "ubuntu-os-accelerator-images"
IMAGE_FAMILIES = {"7x": "ubuntu-accel-2404-amd64-tpu-tpu7x"}
"""Image families of Compute Engine by generation, for those that differ from v5p and v6e."""
IMAGE_FAMILY = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
"""Image family of v5p and v6e."""
BOOT_DISK_GB = 200
"""Size of the boot disk in Compute Engine, whose default of 10 GB is too small for the frameworks."""
MAX_FLEX_START = "7d"
"""Longest time for which flex-start gives a TPU."""
_DURATION = re.compile(r"(?:([0-9]{1,4})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,7})s)?")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_ZONE = re.compile(rf"{_REGION.pattern}-[a-z0-9]+")
_TPU_VM = ("compute", "tpus", "tpu-vm")
_QUEUED = ("compute", "tpus", "queued-resources")
PACKAGES = ("gcc", "libjpeg-dev", "python3-venv")
"""Debian packages of every worker: the compiler of the loaders' decoder, and Python's virtual environments."""
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_SHARE = re.compile(r"([A-Za-z0-9.-]+:/[^\s=:]*)=(/[^\s=:]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Name, zone and project of a TPU."""

    name: str
    zone: str
    project: str | None = None
    """Project of the TPU; None for gcloud's default."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_zone(self.zone)

    @property
    def region(self) -> str:
        return self.zone.rpartition("-")[0]

    @property
    def flags(self) -> list[str]:
        """Flags of gcloud for the TPU's zone and project."""
        return [f"--zone={self.zone}", *self.project_flags]

    @property
    def project_flags(self) -> list[str]:
        return [f"--project={self.project}"] if self.project else []


def duration_s(text: str) -> int:
    """Return the seconds of a duration such as `7d`, `36h` or `1d12h`.

    Raises:
        UsageError: The text has another form.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise UsageError(f"{text!r}: expected a duration such as 7d, 36h or 90m")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def check_zone(zone: str, accelerator: Accelerator | None = None) -> None:
    """Raise UsageError if a text is not the name of a zone; for a region, it names the zones that have the TPU."""
    if _REGION.fullmatch(zone):
        raise UsageError(zone_refusal(zone, accelerator))
    if not _ZONE.fullmatch(zone):
        raise UsageError(f"--zone {zone!r}: not a zone; expected one such as us-central2-b")


def check_name(name: str) -> None:
    """Raise UsageError if Google Cloud allows no TPU of this name."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r}: not a name of a TPU; expected a-z, 0-9 and -, 63 characters at most")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """An existing TPU, and its workers."""

    place: Place
    api: Api
    instances: tuple[str, ...]
    """Names of the workers in Compute Engine, or their numbers in the TPU API."""
    internal_ip: bool = False
    """Whether to reach workers by their internal addresses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A TPU to create."""

    place: Place
    accelerator: Accelerator
    api: Api | None = None
    """Service that creates the TPU; None for the TPU API, if it has this generation, else Compute Engine."""
    queued: bool = False
    valid_until: str | None = None
    """Maximum time that a queued request waits, such as `6h`."""
    flex_start: bool = False
    """Whether to wait for capacity that is given for a limited time."""
    max_run: str | None = None
    """Time after which a flex-start TPU is deleted, such as `7d`; None for MAX_FLEX_START."""
    spot: bool = False
    reserved: bool = False
    reservation: str | None = None
    """Name of a reservation in Compute Engine."""
    runtime_version: str | None = None
    image_family: str | None = None
    boot_disk_gb: int | None = None
    """Size of the boot disk in Compute Engine; None for BOOT_DISK_GB."""
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    internal_ips: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    startup_script: str | None = None
    """Path of the start-up script."""

    def __post_init__(self) -> None:
        generation = self.accelerator.generation
        if not getattr(generation, "tpu_api" if self.chosen_api == "tpu" else "compute_engine"):
            other = APIS[1 - APIS.index(self.chosen_api)]
            raise UsageError(
                f"{self.accelerator.name}: --api {self.chosen_api} does not create it; leave --api out, or give {other}"
            )
        self._check_flex_start()
        if self.spot and (self.reserved or self.reservation):
            raise UsageError("--spot and a reservation exclude each other; give one of them")
        if self.chosen_api == "tpu" and (self.reservation or self.image_family or self.boot_disk_gb):
            raise UsageError(
                "--reservation, --image-family and --boot-disk-gb are for Compute Engine; for the TPU API give "
                "--reserved and --runtime-version"
            )
        if self.chosen_api == "compute-engine" and (self.queued or self.reserved or self.runtime_version):
            raise UsageError(
                "--queued, --reserved and --runtime-version are for the TPU API; Compute Engine has --flex-start and "
                "--reservation NAME"
            )
        if self.valid_until and not (self.queued or self.flex_start):
            raise UsageError("--valid-until is for a request that waits; add --queued or --flex-start")

    def _check_flex_start(self) -> None:
        if self.max_run and not self.flex_start:
            raise UsageError("--max-run is for a TPU that is given for a limited time; add --flex-start")
        if self.flex_start and (self.spot or self.reserved or self.reservation):
            raise UsageError("--flex-start excludes --spot and reservations; give one of them")
        if self.max_run and not 0 < duration_s(self.max_run) <= duration_s(MAX_FLEX_START):
            raise UsageError(f"--max-run {self.max_run}: flex-start gives a TPU for {MAX_FLEX_START} at most")
        group = self.chosen_api == "compute-engine" and self.accelerator.hosts > 1
        if self.flex_start and self.valid_until and group:
            raise UsageError("--valid-until: a group of machines on Compute Engine has no limit for its waiting")

    @property
    def chosen_api(self) -> Api:
        return self.api or ("tpu" if self.accelerator.generation.tpu_api else "compute-engine")


def create_commands(request: Request) -> list[list[str]]:
    """Return the commands that create a TPU, in their order.

    Raises:
        UsageError: The service cannot create it, or needs more options.
    """
    if request.chosen_api == "compute-engine":
        return _create_instances(request) if request.accelerator.hosts == 1 else _create_group(request)
    name = request.place.name
    if request.queued or request.flex_start:
        words = [*_QUEUED, "create", name, f"--node-id={name}", f"--runtime-version={_runtime(request)}"]
        words += [f"--valid-until-duration={request.valid_until}"] if request.valid_until else []
        if request.flex_start:  # the stable command has no such flags
            run = f"--max-run-duration={request.max_run or MAX_FLEX_START}"
            words = ["alpha", *words, "--provisioning-model=flex-start", run]
    else:
        words = [*_TPU_VM, "create", name, f"--version={_runtime(request)}"]
    words += _type_flags(request.accelerator) + request.place.flags
    words += ["--spot"] if request.spot else []
    words += ["--reserved"] if request.reserved else []
    words += [f"--network={request.network}"] if request.network else []
    words += [f"--subnetwork={request.subnetwork}"] if request.subnetwork else []
    words += ["--internal-ips"] if request.internal_ips else []
    return [_gcloud(*words, f"--scopes={SCOPES}", *_common_flags(request, request.labels))]


def describe_command(place: Place) -> list[str]:
    """Return the command that describes a TPU of the TPU API as JSON."""
    return _gcloud(*_TPU_VM, "describe", place.name, *place.flags, "--format=json")


def queued_command(place: Place) -> list[str]:
    """Return the command that describes a queued request of this name as JSON."""
    return _gcloud(*_QUEUED, "describe", place.name, *place.flags, "--format=json")


def instances_command(place: Place) -> list[str]:
    """Return the command that lists a TPU's machines in Compute Engine as JSON."""
    by = f"labels.{LABEL}={place.name} OR name={place.name}"
    zones = f"--zones={place.zone}"
    return _gcloud("compute", "instances", "list", zones, *place.project_flags, f"--filter={by}", "--format=json")


def delete_commands(target: Target, *, queued: bool) -> list[list[str]]:
    """Return the commands that delete a TPU.

    Deleting a queued request also deletes its TPU. A slice in Compute Engine has a group, a template and a policy.
    """
    place, name = target.place, target.place.name
    if target.api == "tpu":
        if queued:
            return [_gcloud(*_QUEUED, "delete", name, *place.flags, "--force", "--quiet")]
        return [_gcloud(*_TPU_VM, "delete", name, *place.flags, "--quiet")]
    if target.instances == (name,):
        return [_gcloud("compute", "instances", "delete", name, *place.flags, "--quiet")]
    regional = [f"--region={place.region}", *place.project_flags, "--quiet"]
    return [
        _gcloud("compute", "instance-groups", "managed", "delete", name, *place.flags, "--quiet"),
        _gcloud("compute", "instance-templates", "delete", f"{name}-template", *regional),
        _gcloud("compute", "resource-policies", "delete", f"{name}-policy", *regional),
    ]


def ssh_command(target: Target, worker: int, command: str) -> list[str]:
    """Return the command that runs a line of shell on one worker.

    `--worker=all` is not used, because it mixes the outputs and exit codes of the workers; `--output-directory`, which
    would separate them, writes to a folder named None in SDK 528.
    """
    internal = ["--internal-ip"] if target.internal_ip else []
    if target.api == "tpu":
        words = [*_TPU_VM, "ssh", target.place.name, *target.place.flags, f"--worker={target.instances[worker]}"]
    else:
        words = ["compute", "ssh", target.instances[worker], *target.place.flags]
    return _gcloud(*words, *internal, "--quiet", f"--command={command}")


def copy_commands(target: Target, source: str, destination: str, *, recurse: bool) -> list[list[str]]:
    """Return the commands that copy to all workers; a relative destination is below the home folder."""
    internal = ["--internal-ip"] if target.internal_ip else []
    how = [*(["--recurse"] if recurse else []), *target.place.flags, *internal, "--quiet"]
    if target.api == "tpu":
        return [_gcloud(*_TPU_VM, "scp", source, f"{target.place.name}:{destination}", *how, "--worker=all")]
    return [_gcloud("compute", "scp", source, f"{name}:{destination}", *how) for name in target.instances]


def fetch_command(target: Target, worker: int, source: str, destination: str) -> list[str]:
    """Return the command that copies a folder from one worker."""
    internal = ["--internal-ip"] if target.internal_ip else []
    how = ["--recurse", *target.place.flags, *internal, "--quiet"]
    if target.api == "tpu":
        number = f"--worker={target.instances[worker]}"
        return _gcloud(*_TPU_VM, "scp", f"{target.place.name}:{source}", destination, *how, number)
    return _gcloud("compute", "scp", f"{target.instances[worker]}:{source}", destination, *how)


def _create_instances(request: Request) -> list[list[str]]:
    words = ["compute", "instances", "create", request.place.name, *request.place.flags]
    return [_gcloud(*words, *_machine_flags(request))]


def _create_group(request: Request) -> list[list[str]]:
    """Return the commands for a slice of several machines: a policy with its topology, a template, and a group that
    gets all machines or none."""
    place, name = request.place, request.place.name
    if not place.project:
        raise UsageError(
            f"{request.accelerator.name} on Compute Engine: policies are named by their project; add --project"
        )
    regional = [f"--region={place.region}", *place.project_flags]
    parent = f"projects/{place.project}/regions/{place.region}"
    group = ("compute", "instance-groups", "managed")
    return [
        _gcloud(
            *("compute", "resource-policies", "create", "workload-policy", f"{name}-policy", *regional),
            *("--type=HIGH_THROUGHPUT", f"--accelerator-topology={_topology(request.accelerator)}"),
            "--accelerator-topology-mode=AUTO_CONNECT",
        ),
        _gcloud(
            *("compute", "instance-templates", "create", f"{name}-template", *place.project_flags),
            f"--instance-template-region={place.region}",
            *_machine_flags(request),
        ),
        _gcloud(
            *(*group, "create", name, *place.flags, "--size=0", f"--base-instance-name={name}"),
            *(f"--template={parent}/instanceTemplates/{name}-template", "--target-size-policy-mode=bulk"),
            *(
                f"--workload-policy={parent}/resourcePolicies/{name}-policy",
                "--default-action-on-vm-failure=do-nothing",
            ),
        ),
        _gcloud(*group, "resize", name, *place.flags, f"--size={request.accelerator.hosts}"),
    ]


def _machine_flags(request: Request) -> list[str]:
    family = request.image_family or IMAGE_FAMILIES.get(request.accelerator.generation.name, IMAGE_FAMILY)
    flags = [
        f"--machine-type={request.accelerator.machine.machine_type}",
        f"--image-family={family}",
        f"--image-project={IMAGE_PROJECT}",
        "--maintenance-policy=TERMINATE",  # a TPU cannot move to another host
        f"--boot-disk-size={request.boot_disk_gb or BOOT_DISK_GB}GB",
        f"--scopes={SCOPES}",
    ]
    if request.accelerator.machine.machine_type == "ct6e-standard-8t":
        flags.append("--threads-per-core=1")
    if request.spot:
        flags += ["--provisioning-model=SPOT", "--instance-termination-action=STOP"]
    if request.flex_start:
        flags += ["--provisioning-model=FLEX_START", "--reservation-affinity=none"]
        flags += [f"--max-run-duration={request.max_run or MAX_FLEX_START}", "--instance-termination-action=DELETE"]
        flags += [f"--request-valid-for-duration={request.valid_until}"] if request.valid_until else []
    if request.reservation:
        flags += ["--provisioning-model=RESERVATION_BOUND", "--reservation-affinity=specific"]
        flags.append(f"--reservation={request.reservation}")
    flags += [f"--network={request.network}"] if request.network else []
    flags += [f"--subnet={request.subnetwork}"] if request.subnetwork else []
    flags += ["--no-address"] if request.internal_ips else []
    return flags + _common_flags(request, {**request.labels, LABEL: request.place.name})


def _common_flags(request: Request, labels: Mapping[str, str]) -> list[str]:
    flags = [f"--service-account={request.service_account}"] if request.service_account else []
    flags += [f"--labels={','.join(f'{key}={value}' for key, value in sorted(labels.items()))}"] if labels else []
    if request.startup_script:
        flags.append(f"--metadata-from-file=startup-script={request.startup_script}")
    return flags


def _runtime(request: Request) -> str:
    return request.runtime_version or request.accelerator.generation.runtime_version


def _type_flags(accelerator: Accelerator) -> list[str]:
    generation, topology = accelerator.generation, accelerator.topology
    suffix = accelerator.cores if generation.suffix_counts == "cores" else accelerator.chips
    if suffix in generation.suffixes and topology in (None, _square(accelerator.chips)) and accelerator.machine.slices:
        return [f"--accelerator-type={generation.prefix}-{suffix}"]
    if topology and generation.name in TYPES_WITH_TOPOLOGY and accelerator.machine.slices:
        return [f"--type={generation.name}", f"--topology={topology}"]
    raise UsageError(
        f"{accelerator.name}{f' ({topology})' if topology else ''}: the TPU API takes no machine types, and "
        f"topologies only of {', '.join(TYPES_WITH_TOPOLOGY)}; write {generation.prefix}-{suffix}"
    )


def _topology(accelerator: Accelerator) -> str:
    if accelerator.topology:
        return accelerator.topology
    if accelerator.generation.dimensions == 2:
        return _square(accelerator.chips)
    prefix = accelerator.generation.prefix
    raise UsageError(f"{accelerator.name} on Compute Engine needs a topology; write e.g. {prefix}:2x2x4")


def _square(chips: int) -> str:
    """Return the topology of an accelerator type that has two dimensions: 4x4, 4x8, 8x8."""
    side = 1 << (chips.bit_length() - 1) // 2
    return f"{side}x{chips // side}"


def _gcloud(*words: str) -> list[str]:
    return ["gcloud", *words]


@dataclass(frozen=True, slots=True)
class Share:
    """An NFS share and its mount point."""

    source: str
    """Server and share, such as `10.0.0.2:/vol1`."""
    target: str
    """Folder, such as `/mnt/data`."""


def parse_share(text: str) -> Share:
    """Parse `SERVER:/SHARE=/FOLDER`.

    Raises:
        UsageError: The text has another form.
    """
    match = _SHARE.fullmatch(text)
    if match is None or ".." in match[2].split("/"):
        raise UsageError(f"--nfs {text!r}: expected SERVER:/SHARE=/FOLDER, such as 10.0.0.2:/vol1=/mnt/data")
    return Share(match[1], match[2].rstrip("/"))


def startup_script(shares: Sequence[Share] = (), packages: Sequence[str] = ()) -> str:
    """Return the bash script; every value in it is quoted.

    Raises:
        UsageError: A package's name is not valid.
    """
    for name in packages:
        if not _PACKAGE.fullmatch(name):
            raise UsageError(f"--package {name!r}: not a name of a Debian package")
    names = dict.fromkeys((*PACKAGES, *(["nfs-common"] if shares else []), *packages))
    install = f'try "${{apt[@]}}" install {shlex.join(names)}'
    mounts = "\n".join(f"try share {shlex.join((share.source, share.target))}" for share in shares)
    template = resources.files("dataprep").joinpath("data", "tpu_startup.sh").read_text(encoding="utf-8")
    return template.replace("@packages@", install).replace("@shares@\n", f"{mounts}\n" if mounts else "")
