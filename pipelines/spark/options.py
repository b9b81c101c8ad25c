"""Options and settings of Spark: pure functions of the command line and of a running cluster's configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dataprep.builder.pool import MAX_DEATHS
from dataprep.errors import UsageError
from dataprep.host.processes import BUILD_ENVIRONMENT

DEFAULT_TASK_FAILURES = 4
LOG_SETTINGS = "-Dlog4j2.configurationFile"
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_FIXED = {"spark.speculation": "false", "spark.python.worker.reuse": "true"}
"""Settings that cannot be changed: a second copy of a running task would only repeat its work, and a table of URLs is
fetched by one fetcher a process, which knows the hosts."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The user's options after `--`."""

    master: str | None = None
    """URL of the cluster; None: that of spark-submit or of the running session."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark by name."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each master of a standalone cluster; only one of several is active."""
        if self.master is None or not self.master.startswith("spark://"):
            return []
        found = []
        for address in self.master.removeprefix("spark://").split(","):
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or int(port) > 65535:
                raise UsageError(f"--master {self.master}: expected spark://HOST:PORT, such as spark://HOST:7077")
            found.append((host, int(port)))
        return found

    @property
    def on_loopback(self) -> bool:
        """Whether the master listens on this machine's loopback interface, so that all nodes are this machine."""
        return bool(self.addresses) and all(host in _LOOPBACK_HOSTS for host, _ in self.addresses)


def spark_options(arguments: Sequence[str]) -> SparkOptions:
    """Parse the arguments after `--`: `--master URL` and any number of `--conf NAME=VALUE`, as for spark-submit.

    Raises:
        UsageError: An argument is unknown or malformed, or a setting cannot be changed.
    """
    master, settings, waiting = None, {}, list(arguments)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if name not in ("--master", "--conf"):
            raise UsageError(
                f"{word}: no option of --runner spark; expected --master URL and --conf NAME=VALUE, "
                "such as --conf spark.executor.memory=2g"
            )
        if not equals:
            if not waiting:
                raise UsageError(f"{name} needs a value, as in --master spark://HOST:7077 --conf spark.cores.max=16")
            value = waiting.pop(0)
        if name == "--master":
            master = value
        else:
            setting, equals, value = value.partition("=")
            if not (setting.startswith("spark.") and equals):
                raise UsageError(f"--conf {setting}: expected NAME=VALUE with a name that begins with spark.")
            _refuse_fixed(setting, value)
            settings[setting] = value
    options = SparkOptions(master, settings)
    _refuse_master(options)
    return options


def _refuse_fixed(setting: str, value: str) -> None:
    if _FIXED.get(setting, value) != value:
        raise UsageError(f"--conf {setting}={value} is refused: a build needs {setting}={_FIXED[setting]}")


def _refuse_master(options: SparkOptions) -> None:
    master = options.master
    if master is None:
        return
    if re.match(r"local(\[|$)", master):
        raise UsageError(f"--master {master} is this machine; use --runner local, which needs no Java")
    if master.startswith("sc://"):
        raise UsageError(
            f"--master {master}: Spark Connect runs no tasks of a Python program; run the command with spark-submit, "
            "or name the cluster itself (spark://HOST:PORT, yarn, k8s://URL)"
        )
    if master != "yarn" and not master.startswith(("spark://", "k8s://")):
        raise UsageError(f"--master {master}: expected spark://HOST:PORT, yarn or k8s://URL")
    _ = options.addresses  # refuses malformed ones


def environment_of(options: SparkOptions) -> dict[str, str]:
    """Return variables for a Java process that is started for these options: on loopback its web page listens there,
    too, for which Spark has no setting."""
    return {"SPARK_LOCAL_IP": "127.0.0.1"} if options.on_loopback else {}


def settings_of(options: SparkOptions, log_file: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a context that is started for these options.

    Args:
        options: The user's options, which come before all others.
        log_file: URL of log4j2's configuration.
        known: Settings of spark-submit, which come before the defaults here.
    """
    chosen = {
        "spark.app.name": "dataprep",
        "spark.ui.showConsoleProgress": "false",
        **{f"spark.executorEnv.{name}": value for name, value in BUILD_ENVIRONMENT.items()},
    }
    if options.on_loopback:  # nothing listens on other interfaces, and this machine's own name may lead anywhere
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    chosen |= {**known, **options.settings, **_FIXED}
    if options.master is not None:
        chosen["spark.master"] = options.master
    java_options = chosen.get(_JAVA_OPTIONS, "")
    if LOG_SETTINGS not in java_options:
        chosen[_JAVA_OPTIONS] = f"{LOG_SETTINGS}={log_file} {java_options}".strip()
    return chosen


def task_failures(settings: Mapping[str, str]) -> int:
    """Return how often a task may fail before Spark ends the job, for the settings of a running context."""
    local = re.fullmatch(r"local\[[^,\]]+(?:,\s*(\d+))?\]|local", settings.get("spark.master", ""))
    if local is not None:
        return int(local[1] or 1)
    return _number(settings, "spark.task.maxFailures", DEFAULT_TASK_FAILURES)


def refuse_few_failures(settings: Mapping[str, str]) -> None:
    """Refuse a running context that ends a job before a shard that kills its worker is set aside. Raises UsageError."""
    failures = task_failures(settings)
    if failures < MAX_DEATHS:
        raise UsageError(
            f"--runner spark: this Spark gives a task up after {failures} failures, expected at least {MAX_DEATHS}, so "
            "that lost workers are replaced; set spark.task.maxFailures=4, or the master local[*,4]"
        )


def shards_at_once(settings: Mapping[str, str], cores: int) -> int:
    """Return the largest number of tasks that run at the same time.

    Args:
        settings: Settings of the running context.
        cores: Cores of the executors that run now.

    Raises:
        UsageError: Executors are started on demand, and their number or size has no limit.
    """
    per_executor = _number(settings, "spark.executor.cores", 1)
    if "spark.cores.max" in settings:
        cores = _number(settings, "spark.cores.max", cores)
    elif settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        most = _number(settings, "spark.dynamicAllocation.maxExecutors", 0)
        if most == 0:
            raise UsageError(
                "--runner spark: this cluster starts executors on demand (spark.dynamicAllocation.enabled); give "
                "--conf spark.dynamicAllocation.maxExecutors=N after --, so that all of them together keep to the "
                "limits of a host"
            )
        cores = most * per_executor
    elif "spark.executor.instances" in settings:
        cores = max(cores, _number(settings, "spark.executor.instances", 1) * per_executor)
    return max(1, cores // _number(settings, "spark.task.cpus", 1))


def _number(settings: Mapping[str, str], name: str, otherwise: int) -> int:
    value = settings.get(name, "").strip()
    return int(value) if re.fullmatch(r"\d{1,9}", value) else otherwise
