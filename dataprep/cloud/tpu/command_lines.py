"""Requests for TPUs, argument lists of `gcloud` for them, and the script that every worker runs at boot. Pure.

The lists are for the TPU API, queued resources, and Compute Engine. The script installs packages and mounts shares,
with retries.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

from dataprep.arguments import WHERE, Pairs, Request, Texts, option, request
from dataprep.cloud.accelerators import Accelerator, compact, parse_accelerator, shape_of, zone_refusal
from dataprep.cloud.region import REGION_NAME, ZONE_NAME, region_of
from dataprep.errors import UsageError

Api = Literal["tpu", "compute-engine"]
LABEL = "dataprep-tpu"
"""Label on every machine of Compute Engine, whose value is the name of its TPU."""
SCOPES = "https://www.googleapis.com/auth/cloud-platform"
TYPES_WITH_TOPOLOGY = ("v2", "v3", "v4")
"""Generations for which `gcloud compute tpus tpu-vm create` takes a topology (SDK 528)."""
IMAGE_PROJECT = "ubuntu-os-accelerator-images"
IMAGE_FAMILIES = {"7x": "ubuntu-accel-2404-amd64-tpu-tpu7x"}
"""Image families of Compute Engine by generation, for generations that differ from v5p and v6e."""
IMAGE_FAMILY = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
"""Image family of v5p and v6e."""
BOOT_DISK_GB = 200
"""Size of the boot disk in Compute Engine, whose default of 10 GB is too small for the frameworks."""
MAX_FLEX_START = "7d"
"""Longest time for which flex-start gives a TPU."""
_DURATION = re.compile(r"(?:([0-9]{1,4})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,7})s)?")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_TPU_VM = ("compute", "tpus", "tpu-vm")
_QUEUED = ("compute", "tpus", "queued-resources")
_GROUP = ("compute", "instance-groups", "managed")
PACKAGES = ("gcc", "libjpeg-dev", "python3-venv")
"""Debian packages of every worker: the compiler of the loaders' decoder, and Python's virtual environments."""
_LABEL = re.compile(r"([a-z][-_a-z0-9]{0,62})=([-_a-z0-9]{0,63})")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_PORTS = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")
_MOST_PORT = 65535
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
        return region_of(self.zone)

    @property
    def flags(self) -> dict[str, str | None]:
        """Flags of gcloud for the TPU's zone and project."""
        return {"zone": self.zone, "project": self.project}


def gcloud_line(*words: str, **flags: object) -> list[str]:
    """Return a command line of gcloud; a flag that is True has no value, one with several is repeated, and one that is
    None or empty is left out."""
    several = ((name, each) for name, value in flags.items() for each in (value if type(value) is list else [value]))
    given = [(name.replace("_", "-"), value) for name, value in several if value not in (None, False, "")]
    return ["gcloud", *words, *(f"--{name}" if value is True else f"--{name}={value}" for name, value in given)]


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
    if REGION_NAME.fullmatch(zone):
        raise UsageError(zone_refusal(zone, accelerator))
    if not ZONE_NAME.fullmatch(zone):
        raise UsageError(f"`zone` {zone!r}: not a zone; expected one such as us-central2-b")


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


@request
class OnTpu(Request):
    """A TPU, and how to run its commands."""

    name: str = option("Name of the TPU.", metavar="TPU", kw_only=False)
    zone: str = option("Zone of the TPU, such as us-central2-b.", envvar="CLOUDSDK_COMPUTE_ZONE", group=WHERE)
    project: str | None = option("Project of the TPU.", default=None, shown="gcloud's default", group=WHERE)
    api: Api | None = option(
        "Service that manages the TPU.",
        default=None,
        shown="the TPU API, otherwise Compute Engine",
        group=WHERE,
        rare=True,
    )
    dry_run: bool = option("Print the commands that would be run, and run nothing.", default=False)

    @property
    def place(self) -> Place:
        return Place(name=self.name, zone=self.zone, project=self.project)


@request
class OnWorkers(OnTpu):
    """A TPU, and how to reach its workers."""

    internal_ip: bool = option("Reach workers by their internal addresses.", default=False, group=WHERE, rare=True)


@request
class CreateTpu(OnTpu):
    """Create a TPU: with the TPU API, as a queued request, or with Compute Engine for the newest types.

    Workers install packages and mount shares when they boot. A TPU costs money from the moment it is READY.
    """

    type: str = option("TPU to create, such as v3-256, v5litepod-16, v4:2x2x4, tpu7x-2x2x4.", metavar="TYPE")
    queued: bool = option("Wait in the TPU API's queue until there is capacity.", default=False)
    valid_until: str | None = option("Maximum time to wait for the TPU, such as 6h.", default=None, metavar="DURATION")
    flex_start: bool = option("Wait for a cheaper TPU, which is deleted after `max_run`.", default=False)
    max_run: str | None = option(
        "Time for which you get a `flex_start` TPU.", default=None, metavar="DURATION", shown="7d"
    )
    spot: bool = option("Use a cheaper TPU that Google may take away at any time.", default=False)
    reserved: bool = option("Use a TPU from the project's reservation (TPU API).", default=False)
    reservation: str | None = option("Use a TPU from this reservation (Compute Engine).", default=None, metavar="NAME")
    runtime_version: str | None = option(
        "Software version of the workers (TPU API).",
        default=None,
        metavar="NAME",
        shown="the version for the generation",
        rare=True,
    )
    image_family: str | None = option(
        "Image of the boot disk (Compute Engine).",
        default=None,
        metavar="NAME",
        shown="the image for the generation",
        rare=True,
    )
    boot_disk_gb: int | None = option(
        "Size of the boot disk (Compute Engine).", default=None, low=10, shown=str(BOOT_DISK_GB), rare=True
    )
    service_account: str | None = option(
        "Service account of the workers; give it access to the bucket only.", default=None, metavar="EMAIL"
    )
    network: str | None = option(
        "Network of the workers.", default=None, metavar="NAME", shown="the project's", rare=True
    )
    subnetwork: str | None = option(
        "Subnetwork of the workers.", default=None, metavar="NAME", shown="the region's", rare=True
    )
    internal_ips: bool = option("Give the workers no external addresses.", default=False, rare=True)
    label: Pairs = option(
        "Label for the bill; may be repeated.", default_factory=dict, example="team=vision", metavar="KEY=VALUE"
    )
    nfs: Texts = option(
        "NFS share to mount at every boot; may be repeated.", default=(), metavar="SERVER:/SHARE=/FOLDER"
    )
    package: Texts = option("Debian package to install; may be repeated.", default=(), metavar="NAME")
    startup_script: Path | None = option(
        "Your own start-up script, instead of the generated TPU-startup.sh.",
        default=None,
        metavar="FILE",
        rare=True,
    )

    def __post_init__(self) -> None:
        """Check the values, and that a service creates such a TPU in this zone."""
        super().__post_init__()
        if self.startup_script and (self.nfs or self.package):
            raise UsageError(
                "`startup_script` excludes `nfs` and `package`; put these into your script, or leave the script out"
            )
        accelerator, api, by_engine = self.accelerator, self.chosen_api, self.chosen_api == "compute-engine"
        check_zone(self.zone, accelerator)
        check_name(self.name)
        check_labels(self.label)
        if not getattr(accelerator.generation, "compute_engine" if by_engine else "tpu_api"):
            other = "tpu" if by_engine else "compute-engine"
            raise UsageError(f"{accelerator.name}: `api` {api} does not create it; leave `api` out, or give {other}")
        is_reserved = self.reserved or bool(self.reservation)
        refusals = {
            "`max_run` is for a TPU that you get for a limited time; add `flex_start`": self.max_run
            and not self.flex_start,
            "`flex_start` excludes `spot` and reservations; give one of them": self.flex_start
            and (self.spot or is_reserved),
            "`spot` and a reservation exclude each other; give one of them": self.spot and is_reserved,
            "`reservation`, `image_family` and `boot_disk_gb` are for Compute Engine; for the TPU API give `reserved` "
            "and `runtime_version`": not by_engine and (self.reservation or self.image_family or self.boot_disk_gb),
            "`queued`, `reserved` and `runtime_version` are for the TPU API; Compute Engine has `flex_start` and "
            "`reservation`": by_engine and (self.queued or self.reserved or self.runtime_version),
            "`valid_until` is for a request that waits; add `queued` or `flex_start`": self.valid_until
            and not (self.queued or self.flex_start),
            "`valid_until`: on Compute Engine, the wait for a group of machines has no limit": self.valid_until
            and by_engine
            and accelerator.hosts > 1,
        }
        for text, applies in refusals.items():
            if applies:
                raise UsageError(text)
        if self.max_run and not 0 < duration_s(self.max_run) <= duration_s(MAX_FLEX_START):
            raise UsageError(f"`max_run` {self.max_run}: flex-start gives a TPU for {MAX_FLEX_START} at most")

    @property
    def accelerator(self) -> Accelerator:
        """The TPU that `type` names."""
        return parse_accelerator(self.type)

    @property
    def chosen_api(self) -> Api:
        """Service that creates the TPU: the TPU API if it has this generation, else Compute Engine."""
        return self.api or ("tpu" if self.accelerator.generation.tpu_api else "compute-engine")


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise UsageError if Google Cloud does not allow a label of a resource."""
    for key, value in labels.items():
        if _LABEL.fullmatch(f"{key}={value}") is None:
            raise UsageError(
                f"`label` {key}={value}: expected KEY=VALUE of a-z, 0-9, _ and -, the key's first a letter, each of at "
                "most 63 characters"
            )


def create_commands(request: CreateTpu, script: Path | None = None) -> list[list[str]]:
    """Return the commands that create a TPU, in their order.

    Args:
        script: Start-up script of its workers.

    Raises:
        UsageError: The service needs more options.
    """
    if request.chosen_api == "compute-engine":
        return _create_machines(request, script)
    name = request.place.name
    runtime = request.runtime_version or request.accelerator.generation.runtime_version
    words, flags = [*_TPU_VM, "create", name], {"version": runtime}
    if request.queued or request.flex_start:
        words, flags = [*_QUEUED, "create", name], {"node_id": name, "runtime_version": runtime}
        flags |= {"valid_until_duration": request.valid_until or ""}
    if request.flex_start:  # the stable command has no such flags
        words.insert(0, "alpha")
        flags |= {"provisioning_model": "flex-start", "max_run_duration": request.max_run or MAX_FLEX_START}
    return [
        gcloud_line(
            *words,
            **flags,
            **_type_flags(request.accelerator),
            **request.place.flags,
            spot=request.spot,
            reserved=request.reserved,
            network=request.network,
            subnetwork=request.subnetwork,
            internal_ips=request.internal_ips,
            scopes=SCOPES,
            **_common_flags(request, script, request.label),
        )
    ]


def describe_command(place: Place) -> list[str]:
    """Return the command that describes a TPU of the TPU API as JSON."""
    return gcloud_line(*_TPU_VM, "describe", place.name, **place.flags, format="json")


def queued_command(place: Place) -> list[str]:
    """Return the command that describes a queued request of this name as JSON."""
    return gcloud_line(*_QUEUED, "describe", place.name, **place.flags, format="json")


def instances_command(place: Place) -> list[str]:
    """Return the command that lists a TPU's machines in Compute Engine as JSON."""
    by = f"labels.{LABEL}={place.name} OR name={place.name}"
    words = ("compute", "instances", "list")
    return gcloud_line(*words, zones=place.zone, project=place.project, filter=by, format="json")


def cache_command(bucket: str, zone: str) -> list[str]:
    """Return the command that adds a Rapid Cache to an existing bucket."""
    return gcloud_line("storage", "buckets", "anywhere-caches", "create", f"gs://{bucket}", zone)


def delete_commands(target: Target, *, queued: bool) -> list[list[str]]:
    """Return the commands that delete a TPU.

    Deleting a queued request also deletes its TPU. A slice in Compute Engine has a group, a template and a policy.
    """
    place, name = target.place, target.place.name
    if target.api == "tpu":
        kind = _QUEUED if queued else _TPU_VM
        return [gcloud_line(*kind, "delete", name, **place.flags, force=queued, quiet=True)]
    if target.instances == (name,):
        return [gcloud_line("compute", "instances", "delete", name, **place.flags, quiet=True)]
    regional = {"region": place.region, "project": place.project, "quiet": True}
    return [
        gcloud_line(*_GROUP, "delete", name, **place.flags, quiet=True),
        gcloud_line("compute", "instance-templates", "delete", f"{name}-template", **regional),
        gcloud_line("compute", "resource-policies", "delete", f"{name}-policy", **regional),
    ]


def ssh_command(target: Target, worker: int, command: str) -> list[str]:
    """Return the command that runs a line of shell on one worker.

    Each worker gets a call of its own, because gcloud mixes the outputs and exit codes of several; its output
    directory, which would separate them, is a folder named None in SDK 528.
    """
    return _ssh_line(target, worker, quiet=True, command=command)


def shell_command(target: Target, worker: int, ports: Sequence[str]) -> list[str]:
    """Return the command that opens a shell on a worker.

    Args:
        ports: Ports of this machine that lead to the same port of the worker, or to another: `6006` or `6006:9012`.

    Raises:
        UsageError: A port has another form.
    """
    flags = []
    for text in ports:
        match = _PORTS.fullmatch(text)
        if match is None or not all(0 < int(port) <= _MOST_PORT for port in match.groups(match[1])):
            raise UsageError(f"`forward` {text}: expected a port, such as 6006, or LOCAL:REMOTE, such as 6006:9012")
        flags.append(f"-L{match[1]}:localhost:{match[2] or match[1]}")
    return _ssh_line(target, worker, ssh_flag=flags)  # not quiet: gcloud may ask


def _ssh_line(target: Target, worker: int, **flags: object) -> list[str]:
    place, flags = target.place, {"internal_ip": target.internal_ip, **flags}
    if target.api == "tpu":
        return gcloud_line(*_TPU_VM, "ssh", place.name, **place.flags, worker=str(worker), **flags)
    return gcloud_line("compute", "ssh", target.instances[worker], **place.flags, **flags)


def copy_commands(target: Target, source: str, destination: str, *, recurse: bool) -> list[list[str]]:
    """Return the commands that copy to all workers; a relative destination is below the home folder."""
    flags = {"recurse": recurse, **target.place.flags, "internal_ip": target.internal_ip, "quiet": True}
    if target.api == "tpu":
        return [gcloud_line(*_TPU_VM, "scp", source, f"{target.place.name}:{destination}", **flags, worker="all")]
    return [gcloud_line("compute", "scp", source, f"{name}:{destination}", **flags) for name in target.instances]


def fetch_command(target: Target, worker: int, source: str, destination: str) -> list[str]:
    """Return the command that copies a folder from one worker."""
    flags = {"recurse": True, **target.place.flags, "internal_ip": target.internal_ip, "quiet": True}
    number = target.instances[worker]
    if target.api == "tpu":
        return gcloud_line(*_TPU_VM, "scp", f"{target.place.name}:{source}", destination, **flags, worker=number)
    return gcloud_line("compute", "scp", f"{number}:{source}", destination, **flags)


def _create_machines(request: CreateTpu, script: Path | None) -> list[list[str]]:
    """Return the command for one machine, or the commands for a slice of several: a policy with its topology, a
    template, and a group that gets all machines or none."""
    place, name, machine = request.place, request.place.name, _machine_flags(request, script)
    if request.accelerator.hosts == 1:
        return [gcloud_line("compute", "instances", "create", name, **place.flags, **machine)]
    if not place.project:
        raise UsageError(
            f"{request.accelerator.name} on Compute Engine: a resource policy belongs to a project; add `project`"
        )
    parent = f"projects/{place.project}/regions/{place.region}"
    return [
        gcloud_line(
            *("compute", "resource-policies", "create", "workload-policy", f"{name}-policy"),
            region=place.region,
            project=place.project,
            type="HIGH_THROUGHPUT",
            accelerator_topology=_topology(request.accelerator),
            accelerator_topology_mode="AUTO_CONNECT",
        ),
        gcloud_line(
            *("compute", "instance-templates", "create", f"{name}-template"),
            project=place.project,
            instance_template_region=place.region,
            **machine,
        ),
        gcloud_line(
            *(*_GROUP, "create", name),
            **place.flags,
            size="0",
            base_instance_name=name,
            template=f"{parent}/instanceTemplates/{name}-template",
            target_size_policy_mode="bulk",
            workload_policy=f"{parent}/resourcePolicies/{name}-policy",
            default_action_on_vm_failure="do-nothing",
        ),
        gcloud_line(*_GROUP, "resize", name, **place.flags, size=request.accelerator.hosts),
    ]


def _machine_flags(request: CreateTpu, script: Path | None) -> dict[str, object]:
    machine_type = request.accelerator.machine.machine_type
    how: dict[str, object] = {}
    if request.spot:
        how = {"provisioning_model": "SPOT", "instance_termination_action": "STOP"}
    elif request.flex_start:
        how = {"provisioning_model": "FLEX_START", "reservation_affinity": "none"}
        how |= {"max_run_duration": request.max_run or MAX_FLEX_START, "instance_termination_action": "DELETE"}
        how |= {"request_valid_for_duration": request.valid_until}
    elif request.reservation:
        how = {"provisioning_model": "RESERVATION_BOUND", "reservation_affinity": "specific"}
        how |= {"reservation": request.reservation}
    return {
        "machine_type": machine_type,
        "image_family": request.image_family or IMAGE_FAMILIES.get(request.accelerator.generation.name, IMAGE_FAMILY),
        "image_project": IMAGE_PROJECT,
        "maintenance_policy": "TERMINATE",  # a TPU cannot move to another host
        "boot_disk_size": f"{request.boot_disk_gb or BOOT_DISK_GB}GB",
        "scopes": SCOPES,
        "threads_per_core": "1" if machine_type == "ct6e-standard-8t" else None,
        **how,
        "network": request.network,
        "subnet": request.subnetwork,
        "no_address": request.internal_ips,
        **_common_flags(request, script, {**request.label, LABEL: request.name}),
    }


def _common_flags(request: CreateTpu, script: Path | None, labels: Mapping[str, str]) -> dict[str, object]:
    return {
        "service_account": request.service_account,
        "labels": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        "metadata_from_file": script and f"startup-script={script}",
    }


def _type_flags(accelerator: Accelerator) -> dict[str, str]:
    generation, topology = accelerator.generation, accelerator.topology
    suffix = accelerator.cores if generation.suffix_counts == "cores" else accelerator.chips
    is_usual = topology is None or (generation.dimensions == 2 and topology == compact(accelerator.chips, 2))
    if suffix in generation.suffixes and is_usual and accelerator.machine.slices:
        return {"accelerator_type": f"{generation.prefix}-{suffix}"}
    if topology and generation.name in TYPES_WITH_TOPOLOGY and accelerator.machine.slices:
        return {"type": generation.name, "topology": topology}
    raise UsageError(
        f"{accelerator.name}{f' ({topology})' if topology else ''}: the TPU API takes no machine types, and "
        f"topologies only of {', '.join(TYPES_WITH_TOPOLOGY)}; write {generation.prefix}-{suffix}"
    )


def _topology(accelerator: Accelerator) -> str:
    if accelerator.topology is None and accelerator.generation.dimensions == 3:
        prefix = accelerator.generation.prefix
        raise UsageError(f"{accelerator.name} on Compute Engine needs a topology; write e.g. {prefix}:2x2x4")
    return shape_of(accelerator)


class Share(NamedTuple):
    """An NFS share, such as `10.0.0.2:/vol1`, and the folder on which it is mounted."""

    source: str
    target: str


def parse_share(text: str) -> Share:
    """Parse `SERVER:/SHARE=/FOLDER`.

    Raises:
        UsageError: The text has another form.
    """
    match = _SHARE.fullmatch(text)
    if match is None or ".." in match[2].split("/"):
        raise UsageError(f"`nfs` {text!r}: expected SERVER:/SHARE=/FOLDER, such as 10.0.0.2:/vol1=/mnt/data")
    return Share(match[1], match[2].rstrip("/"))


def startup_script(shares: Sequence[Share] = (), packages: Sequence[str] = ()) -> str:
    """Return the bash script; every value in it is quoted.

    Raises:
        UsageError: A package's name is not valid.
    """
    for name in packages:
        if not _PACKAGE.fullmatch(name):
            raise UsageError(f"`package` {name!r}: not a name of a Debian package")
    names = dict.fromkeys((*PACKAGES, *(["nfs-common"] if shares else []), *packages))
    install = f'try "${{apt[@]}}" install {shlex.join(names)}'
    mounts = "\n".join(f"try share {shlex.join(share)}" for share in shares)
    template = resources.files("dataprep").joinpath("data", "tpu_startup.sh").read_text(encoding="utf-8")
    return template.replace("@packages@", install).replace("@shares@\n", f"{mounts}\n" if mounts else "")
