"""Completes and checks the arguments of each Beam runner, before anything is started.

The user gives the facts that only they know (an address, a project, an image). The others are found here: the number of
workers, the location of their code, the versions that they install.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dataprep.cloud.placement import is_bucket
from dataprep.errors import DISTRIBUTION, UsageError
from pipelines.engines import LOOPBACK_HOSTS, unreachable

REFUSED = {
    "DaskRunner": "it drops data silently: of several outputs only the last is computed, and bundles end without "
    "finish_bundle",
    "DirectRunner": "it is a switch that downloads and tries another engine first; name FnApiRunner",
    "BundleBasedDirectRunner": "it is the retired engine behind DirectRunner; name FnApiRunner",
    "FlinkRunner": "it was never run with this package; use `runner` ray, `runner` spark or `part`",
    "PrismRunner": "it was never run with this package; name FnApiRunner",
    "SparkRunner": "it was never run with this package; name `runner` spark, which needs no Beam",
}
_CODE = "--sdk_container_image", "--extra_package", "--setup_file"
_ONE_PROCESS = "no_use_multiple_sdk_containers"
"""Experiment that makes Dataflow start one process on a machine, whatever its vCPUs."""
_MACHINE = re.compile(r"[a-z]\w*-(?:custom-(\d{1,4})-\d+(?:-ext)?|[a-z]+-(\d{1,4})(?:-[a-z]+)?)")
"""Machine types whose names contain their vCPUs, such as n2-standard-4, e2-highcpu-8 and n2-custom-8-16384."""


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a runner."""

    given: dict[str, str]
    """The user's options, `--name` to value."""
    workers: int
    urls: tuple[str, ...]
    """URLs of originals and dataset."""

    def missing(self, **values: object) -> list[str]:
        """Return `--name=value` for the values that the user did not give."""
        return [f"--{name}={value}" for name, value in values.items() if f"--{name}" not in self.given]

    def need(self, runner: str, name: str, what: str) -> str:
        """Return the user's value of an option. Raises UsageError, which says what the option is, if it is missing."""
        if not self.given.get(name):
            raise UsageError(f"`runner` {runner} needs {name}={what}; give it after --")
        return self.given[name]


def check_name(runner: str) -> None:
    """Raise UsageError for a runner that is unknown or loses data."""
    if runner in REFUSED:
        raise UsageError(f"`runner` {runner} is refused: {REFUSED[runner]}")
    if runner not in RUNNERS:
        raise UsageError(f"`runner` {runner}: unknown; expected local, ray, spark or one of {', '.join(RUNNERS)}")


def prepare_arguments(runner: str, workers: int, arguments: Sequence[str], urls: Sequence[str] = ()) -> list[str]:
    """Return the user's arguments, completed with those that the runner also needs.

    Args:
        runner: One of RUNNERS.
        workers: Number of processes, if the runner starts them on this machine.
        arguments: The user's arguments after `--`.
        urls: URLs of originals and dataset; workers on other machines must be able to reach them.

    Raises:
        UsageError: Something that the runner needs is missing; the error says how to get it.
    """
    return [*arguments, *RUNNERS[runner](Request(_given(arguments), workers, tuple(urls)))]


def fetchers(runner: str, workers: int, arguments: Sequence[str]) -> int:
    """Return the largest number of worker processes; the limits for web hosts are divided by it.

    Args:
        workers: Value of `workers`, for a runner whose options do not set the number.
        arguments: The result of `prepare_arguments`.

    Raises:
        UsageError: The options of Dataflow do not limit its processes, so it may start a thousand.
    """
    given = _given(arguments)
    if runner == "DataflowRunner":
        return _dataflow_processes(given)
    value = given.get("--direct_num_workers", "") if runner == "FnApiRunner" else ""
    return int(value) if value.isdigit() and int(value) else workers


def _dataflow_processes(given: Mapping[str, str]) -> int:
    """Return the largest number of Dataflow's processes: one for each vCPU of each machine."""
    machines = given.get("--max_num_workers", "")
    machine = given.get("--machine_type") or given.get("--worker_machine_type")
    if not (machines.isdigit() and int(machines)) or not machine:
        raise UsageError(
            "`runner` DataflowRunner needs --max_num_workers=N and --machine_type=TYPE after --, so that all of its "
            "processes together, one for each vCPU, keep to the limits of a host"
        )
    if _ONE_PROCESS in given.get("--experiments", "").split(","):
        return int(machines)
    return int(machines) * _vcpus(machine)


def _vcpus(machine: str) -> int:
    """Return the number of vCPUs of a machine type. Raises UsageError if its name does not contain it."""
    named = _MACHINE.fullmatch(machine)
    if named is None:
        raise UsageError(
            f"--machine_type={machine}: its name does not say how many vCPUs it has; give a type such as "
            f"n2-standard-4, or --experiments={_ONE_PROCESS} for one process on each machine"
        )
    return int(named[1] or named[2])


def _given(arguments: Sequence[str]) -> dict[str, str]:
    """Map options to values; Beam accepts `--name=value`, `--name value` and flags."""
    found: dict[str, str] = {}
    for argument, following in pairwise([*arguments, "--"]):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            found[name] = value if equals or following.startswith("--") else following
    return found


def _fn_api(request: Request) -> list[str]:
    if request.workers == 1:
        return []
    return request.missing(direct_running_mode="multi_processing", direct_num_workers=request.workers)


def _portable(request: Request) -> list[str]:
    endpoint = request.need("PortableRunner", "--job_endpoint", "HOST:PORT of a job service")
    _reach("PortableRunner", "--job_endpoint", endpoint)
    here = _on_this_machine(endpoint)
    if here and request.given.get("--environment_type") == "EXTERNAL" and request.given.get("--environment_config"):
        _reach("PortableRunner", "--environment_config", request.given["--environment_config"])
    return _environment("PortableRunner", request, here=here)


def _dataflow(request: Request) -> list[str]:
    for name, what in (("--project", "PROJECT"), ("--region", "REGION"), ("--temp_location", "gs://BUCKET/PREFIX")):
        request.need("DataflowRunner", name, what)
    if not any(name in request.given for name in _CODE):
        raise UsageError(
            "`runner` DataflowRunner: its workers have no dataprep; give --sdk_container_image=IMAGE of the "
            "Dockerfile, or --extra_package=WHEEL (pip wheel --no-deps .)"
        )
    _refuse_local_files("DataflowRunner", request)
    # One shard in each process, which keeps a vCPU busy; Dataflow's default is twelve.
    return [*request.missing(number_of_worker_harness_threads=1), *_pins(request)]


def _pins(request: Request) -> list[str]:
    """Return options that give workers that install a wheel the driver's versions of everything it needs."""
    if "--extra_package" not in request.given or "--requirements_file" in request.given:
        return []
    options = [f"--requirements_file={pins_file()}"]
    # Workers with public addresses install them from the index; for others Beam stages the packages.
    if "--no_use_public_ips" not in request.given:
        options += request.missing(requirements_cache="skip")
    return options


def _environment(runner: str, request: Request, *, here: bool) -> list[str]:
    """Return the workers' environment: processes of this machine, a container, or an existing pool."""
    kind = request.given.get("--environment_type", "LOOPBACK" if here else "")
    if not kind:
        raise UsageError(
            f"`runner` {runner}: workers on other machines have no dataprep; give --environment_type=DOCKER "
            "--environment_config=IMAGE of the Dockerfile, or EXTERNAL and HOST:PORT of a worker pool"
        )
    if not here or kind == "DOCKER":
        _refuse_local_files(runner, request)
    if kind == "LOOPBACK":
        # Without this the workers are threads of one process, which share one interpreter lock.
        return [*request.missing(environment_type=kind), "--experiments=use_loopback_process_worker"]
    config = request.given.get("--environment_config", "")
    if not config and "--environment_options" not in request.given:
        raise UsageError(f"--environment_type={kind} needs --environment_config: an image, a command or HOST:PORT")
    return []


def _refuse_local_files(runner: str, request: Request) -> None:
    for url in request.urls:
        if not is_bucket(url):
            raise UsageError(f"`runner` {runner}: workers on other machines cannot reach {url}; copy it to a bucket")


def _on_this_machine(address: str) -> bool:
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    return host in LOOPBACK_HOSTS


@cache
def pins_file() -> Path:
    """Write the versions of this process, of this package's needs and those for fetching, to a temporary file."""
    folder = TemporaryDirectory(prefix="dataprep-pins-")
    atexit.register(folder.cleanup)  # the file is read when a job is submitted
    path = Path(folder.name, "requirements.txt")
    path.write_text("".join(f"{name}=={found}\n" for name, found in sorted(_needed().items())))
    return path


def _needed() -> dict[str, str]:
    """Map every installed distribution that a worker needs, directly or not, to its version."""
    found: dict[str, str] = {}
    waiting = [Requirement(f"{DISTRIBUTION}[laion]")]
    seen = {str(waiting[0])}
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        try:
            installed = distribution(name)
        except PackageNotFoundError:  # an extra that the driver lacks, and that this build does not need
            continue
        if name != DISTRIBUTION:
            found[name] = installed.version
        for line in installed.requires or ():
            need = Requirement(line)
            extras = wanted.extras or {""}
            if str(need) not in seen and (
                need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras)
            ):
                seen.add(str(need))
                waiting.append(need)
    return found


def _reach(runner: str, flag: str, address: str) -> None:
    if error := unreachable(address):
        raise UsageError(f"`runner` {runner}: nothing answers at {flag}={address} ({error}); start it first") from error


RUNNERS: dict[str, Callable[[Request], list[str]]] = {
    "FnApiRunner": _fn_api,
    "DataflowRunner": _dataflow,
    "PortableRunner": _portable,
}
