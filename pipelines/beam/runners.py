"""Completes and checks the arguments of each Beam runner, before anything is started.

The user gives the facts that only they know (a cluster's address, a project, an image). All others are found here: the
job server's jar for the cluster's Flink version, the number of workers, the location of their code.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from apache_beam.version import __version__ as BEAM_VERSION

from dataprep.cloud.placement import is_bucket
from dataprep.errors import UsageError

REFUSED = {
    "DaskRunner": "it drops data silently: of several outputs only the last is computed, and bundles end without "
    "finish_bundle",
    "DirectRunner": "it is a switch that downloads and tries another engine first; name FnApiRunner",
    "BundleBasedDirectRunner": "it is the retired engine behind DirectRunner; name FnApiRunner",
}
SPARK_JOB_SERVER = "beam-runners-spark-3-job-server"
PRISM = "github.com/apache/beam/sdks/v2/go/cmd/prism"
# A job that Flink restarts finds the receipts of the shards that are finished.
FLINK_RETRIES = 5
SERVER_FLAGS = {"FlinkRunner": ("--number_of_execution_retries", "--execution_retry_delay")}
"""Options that only the job server knows; Beam's Python side passes them on."""
_AT_ONCE = {
    "FnApiRunner": ("--direct_num_workers",),
    "FlinkRunner": ("--parallelism",),
    "DataflowRunner": ("--max_num_workers", "--number_of_worker_harness_threads"),
}
"""Options whose product is the number of shards in progress."""
_CODE = "--sdk_container_image", "--extra_package", "--setup_file"
_WAIT_S = 10
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


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
            raise UsageError(f"--runner {runner} needs {name}={what}; give it after --")
        return self.given[name]


def check_name(runner: str) -> None:
    """Raise UsageError for a runner that is unknown or loses data."""
    if runner in REFUSED:
        raise UsageError(f"--runner {runner} is refused: {REFUSED[runner]}")
    if runner not in RUNNERS:
        raise UsageError(f"--runner {runner}: unknown; expected local, ray or one of {', '.join(RUNNERS)}")


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


def shards_at_once(runner: str, workers: int, arguments: Sequence[str]) -> int:
    """Return the largest number of shards in progress, by which the limits for web hosts are divided.

    Args:
        runner: One of RUNNERS.
        workers: Value of --workers, for a runner whose options do not set the number.
        arguments: The result of `prepare_arguments`.

    Raises:
        UsageError: The options of Dataflow do not limit its machines and threads, so it may start a thousand.
    """
    given, at_once = _given(arguments), 1
    for name in _AT_ONCE.get(runner, ()):
        value = given.get(name, "")
        if value.isdigit() and int(value):
            at_once *= int(value)
        elif runner == "DataflowRunner":
            raise UsageError(
                f"--runner DataflowRunner needs {' and '.join(f'{each}=N' for each in _AT_ONCE[runner])} after --, so "
                "that all of its threads together keep to the limits of a host"
            )
        else:
            return workers
    return at_once if runner in _AT_ONCE else workers


def engines_folder() -> Path:
    """Return the folder that is searched for job servers and Prism."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "dataprep", "engines")


def jar_command(artifact: str) -> str:
    """Return the command that downloads a job server of this Beam's version."""
    return (
        f"mvn dependency:copy -Dartifact=org.apache.beam:{artifact}:{BEAM_VERSION} -DoutputDirectory={engines_folder()}"
    )


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


def _flink(request: Request) -> list[str]:
    master = request.given.get("--flink_master", "[local]")
    if master in ("[local]", "[auto]"):
        version = request.given.get("--flink_version", "1.19")
        slots, managers = request.workers, 1
    else:
        version, slots, managers = _flink_cluster(master)
    jar = _job_server("FlinkRunner", request, "--flink_job_server_jar", f"beam-runners-flink-{version}-job-server")
    return [
        *request.missing(flink_master=master, flink_version=version, parallelism=slots),
        # One Python process for each slot; Beam's default is one for each TaskManager.
        *request.missing(sdk_worker_parallelism=max(1, slots // managers), number_of_execution_retries=FLINK_RETRIES),
        *jar,
        *_environment("FlinkRunner", request, here=_on_this_machine(master)),
    ]


def _flink_cluster(master: str) -> tuple[str, int, int]:
    """Read Flink's version (`1.19`), task slots and TaskManagers from its REST interface."""
    url = master if "://" in master else f"http://{master}"
    try:
        overview = _get_json(f"{url}/overview")
        version = ".".join(str(overview["flink-version"]).split(".")[:2])
        slots, managers = int(str(overview["slots-total"])), int(str(overview["taskmanagers"]))
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"--runner FlinkRunner: no Flink answers at {url} ({error}); "
            "--flink_master is the JobManager's REST address, HOST:PORT"
        ) from error
    if slots == 0:
        raise UsageError(f"--runner FlinkRunner: {url} has no task slots; start a TaskManager")
    return version, slots, managers


def _get_json(url: str) -> dict[str, object]:
    if not url.startswith(("http://", "https://")):
        raise ValueError("expected http:// or https://")
    with urllib.request.urlopen(url, timeout=_WAIT_S) as answer:
        document: dict[str, object] = json.load(answer)
        return document


def _spark(request: Request) -> list[str]:
    master = request.given.get("--spark_master_url", f"local[{request.workers}]")
    return [
        *request.missing(spark_master_url=master),
        *_job_server("SparkRunner", request, "--spark_job_server_jar", SPARK_JOB_SERVER),
        *_environment("SparkRunner", request, here=_on_this_machine(master)),
    ]


def _portable(request: Request) -> list[str]:
    endpoint = request.need("PortableRunner", "--job_endpoint", "HOST:PORT of a job service")
    _reach("PortableRunner", "--job_endpoint", endpoint)
    here = _on_this_machine(endpoint)
    if here and request.given.get("--environment_type") == "EXTERNAL" and request.given.get("--environment_config"):
        _reach("PortableRunner", "--environment_config", request.given["--environment_config"])
    return _environment("PortableRunner", request, here=here)


def _prism(request: Request) -> list[str]:
    command = f"GOBIN={engines_folder()} go install {PRISM}@v{BEAM_VERSION}"
    found = request.given.get("--prism_location") or shutil.which(
        "prism", path=os.pathsep.join([str(engines_folder()), os.environ.get("PATH", "")])
    )
    if found is None or not Path(found).is_file():
        raise UsageError(f"--runner PrismRunner: no prism binary ({found or 'none in PATH'}); get it with: {command}")
    return [*request.missing(prism_location=found), *_environment("PrismRunner", request, here=True)]


def _dataflow(request: Request) -> list[str]:
    for name, what in (("--project", "PROJECT"), ("--region", "REGION"), ("--temp_location", "gs://BUCKET/PREFIX")):
        request.need("DataflowRunner", name, what)
    if not any(name in request.given for name in _CODE):
        raise UsageError(
            "--runner DataflowRunner: its workers have no dataprep; give --sdk_container_image=IMAGE of the "
            "Dockerfile, or --extra_package=WHEEL (pip wheel --no-deps .)"
        )
    _refuse_local_files("DataflowRunner", request)
    return []


def _job_server(runner: str, request: Request, flag: str, artifact: str) -> list[str]:
    """Find the jar of a job server, which Beam would otherwise download itself, and the Java to run it."""
    java = request.given.get("--job_server_java_launcher", "java")
    if shutil.which(java) is None:
        raise UsageError(f"--runner {runner}: no {java} in PATH; install a Java 17 runtime (openjdk-17-jre-headless)")
    if flag in request.given:
        if not Path(request.given[flag]).is_file():
            raise UsageError(f"{flag}={request.given[flag]}: no such file; get it with: {jar_command(artifact)}")
        return []
    jar = engines_folder() / f"{artifact}-{BEAM_VERSION}.jar"
    if not jar.is_file():
        raise UsageError(f"--runner {runner}: no {jar}; get it with: {jar_command(artifact)}")
    return [f"{flag}={jar}"]


def _environment(runner: str, request: Request, *, here: bool) -> list[str]:
    """Return the workers' environment: processes of this machine, a container, or an existing pool."""
    kind = request.given.get("--environment_type", "LOOPBACK" if here else "")
    if not kind:
        raise UsageError(
            f"--runner {runner}: workers on other machines have no dataprep; give --environment_type=DOCKER "
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
            raise UsageError(f"--runner {runner}: workers on other machines cannot reach {url}; copy it to a bucket")


def _on_this_machine(address: str) -> bool:
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    return host in _LOOPBACK_HOSTS or address.startswith(("local", "["))


def _reach(runner: str, flag: str, address: str) -> None:
    """Raise an error if nothing listens at an address, at once instead of after the five minutes that Beam waits."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_WAIT_S).close()
    except (OSError, ValueError) as error:
        raise UsageError(f"--runner {runner}: nothing answers at {flag}={address} ({error}); start it first") from error


RUNNERS: dict[str, Callable[[Request], list[str]]] = {
    "FnApiRunner": _fn_api,
    "DataflowRunner": _dataflow,
    "FlinkRunner": _flink,
    "PortableRunner": _portable,
    "PrismRunner": _prism,
    "SparkRunner": _spark,
}
