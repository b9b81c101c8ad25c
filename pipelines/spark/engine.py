"""The engine of the runner `spark`: one job with one task for each shard; Spark tries lost tasks again.

    open_engine: context, started or joined ─▶ one task that checks a node ─▶ the engine
    the engine:  one job with a task for each shard ─▶ receipts

PySpark's call returns only at the job's end, so a thread waits for it; the main thread stays free for Ctrl-C. Answers
come through an accumulator: Spark merges a task's update at the driver when the task has succeeded, exactly once.
When this process dies, its Java process reads the end of its input and ends, and the executors end with it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep import __version__
from dataprep.builder.pool import MAX_DEATHS
from dataprep.builder.recipe import BuildJob, Engine
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import DISTRIBUTION, BuildError, DataprepError, UsageError, needing
from dataprep.host.heartbeat import beat
from dataprep.host.processes import BUILD_ENVIRONMENT
from dataprep.messages import one_line, shortened
from pipelines.engines import LOOPBACK_HOSTS, EngineChoice, EngineParser, EngineWork, unreachable
from pipelines.task import Answer, Lost, NodeTask, Task, receipts_in, shard_task, source_paths

if TYPE_CHECKING:
    from pyspark import SparkContext

LOG_SETTINGS = "-Dlog4j2.configurationFile"
GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Variable that spark-submit sets for the program that it runs."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_OURS = "spark.dataprep.started"
"""Setting that marks contexts started here, which are stopped at the end."""
_LOG_FILE = Path(__file__).with_name("log4j2.properties")
_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
_LONGEST = 300
_PYTHONS = (
    (
        r"different version: (?P<found>\S+) than that in driver",
        f"the workers' Python is {{found}}, this command's is {_HERE}; set PYSPARK_PYTHON to a Python {_HERE} that is "
        "on every node, with {package}",
    ),
    (
        r'Cannot run program "(?P<found>[^"\n]{1,200})"',
        f"a worker cannot start {{found}}; set PYSPARK_PYTHON to a Python {_HERE} that is on every node, with "
        "{package}",
    ),
    (
        r"Error from python worker:\s*(?P<found>\S[^\n]*)",
        f"a worker's Python does not start: {{found}}; set PYSPARK_PYTHON to a Python {_HERE} that is on every node, "
        "with {package}",
    ),
    (
        r"ModuleNotFoundError: No module named '(?P<found>[\w.]{1,100})'",
        "the workers' Python has no module {found}; install {package} and the packages that this build needs on every "
        "node, and set PYSPARK_PYTHON to that Python",
    ),
)
"""Patterns of the errors of workers that cannot build, and what each means."""
_CAUSES = (
    r"most recent failure: .*?\(TID \d+\) \([^)]*\): (.+)",
    r"Job aborted due to stage failure: (.+)",
    r"(Job \d+ cancelled.*)",
    r"An error occurred while calling [^\n]*\n: (.+)",
)
"""Patterns of the line that names the cause, best first."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The user's options after `--`."""

    master: str | None = None
    """URL of the cluster; None: spark-submit's or the running session's."""
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
        return bool(self.addresses) and all(host.strip("[]") in LOOPBACK_HOSTS for host, _ in self.addresses)


def spark_options(arguments: Sequence[str]) -> SparkOptions:
    """Parse the arguments after `--`: `--master URL` and any number of `--conf NAME=VALUE`, as for spark-submit. Raises
    UsageError if an argument is unknown or malformed, or Spark has no tasks for Python at that master."""
    parser = EngineParser("spark")
    parser.add_argument("--master", metavar="URL")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE")
    found = parser.parse_args(list(arguments))
    for pair in found.conf:
        if not re.match(r"spark\.[^=]+=", pair):
            parser.error(f"--conf {pair}: expected NAME=VALUE with a name that begins with spark.")
    options = SparkOptions(found.master, dict(pair.split("=", 1) for pair in found.conf))
    if (
        options.master is not None
        and options.master != "yarn"
        and not options.master.startswith(("spark://", "k8s://"))
    ):
        raise UsageError(
            f"--master {options.master}: expected spark://HOST:PORT, yarn or k8s://URL; use `runner` local for this "
            "machine, and spark-submit where there is only Spark Connect, which runs no tasks of a Python program"
        )
    _ = options.addresses  # refuses malformed ones
    return options


def settings_of(options: SparkOptions, known: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a context that is started for these options, which come before spark-submit's."""
    chosen = {
        _OURS: "true",
        "spark.app.name": "dataprep",
        "spark.ui.showConsoleProgress": "false",
        # One process fetches all rows of a table of URLs that come to its core, so that it knows the hosts.
        "spark.python.worker.reuse": "true",
        **{f"spark.executorEnv.{name}": value for name, value in BUILD_ENVIRONMENT.items()},
    }
    if options.on_loopback:  # nothing listens on other interfaces, and this machine's own name may lead anywhere
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    chosen |= {**known, **options.settings}
    if options.master is not None:
        chosen["spark.master"] = options.master
    java_options = chosen.get(_JAVA_OPTIONS, "")
    if LOG_SETTINGS not in java_options:
        chosen[_JAVA_OPTIONS] = f"{LOG_SETTINGS}={_LOG_FILE.as_uri()} {java_options}".strip()
    return chosen


def cores_at_most(settings: Mapping[str, str]) -> int:
    """Return the largest number of tasks that run at the same time, for the settings of a running context. Raises
    UsageError if they do not limit it: executors that join later would add to the requests that a host gets."""

    def number(name: str, otherwise: int) -> int:
        value = settings.get(name, "").strip()
        return int(value) if re.fullmatch(r"\d{1,9}", value) else otherwise

    is_dynamic = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    executors = number(f"spark.{'dynamicAllocation.maxExecutors' if is_dynamic else 'executor.instances'}", 0)
    cores = number("spark.cores.max", executors * number("spark.executor.cores", 1))
    if not cores:
        raise UsageError(
            "`runner` spark with a table of URLs needs --conf spark.cores.max=N after --, or spark.executor.instances "
            "or spark.dynamicAllocation.maxExecutors with spark.executor.cores, so that all executors together keep to "
            "the limits of a host"
        )
    return max(1, cores // number("spark.task.cpus", 1))


def open_context(options: SparkOptions) -> SparkContext:
    """Return the running context, or start one. Raises UsageError if PySpark, Java or the master is missing, or Spark
    could not be started."""
    with needing("spark", "`runner` spark"):
        from pyspark import SparkConf, SparkContext
    if SparkContext._active_spark_context is not None:
        return SparkContext._active_spark_context
    submitted = GATEWAY in os.environ
    if not submitted:
        refuse_unreachable(options, os.environ)
        # The same Python as here, unless the user knows better: Spark refuses other minor versions.
        os.environ.setdefault("PYSPARK_PYTHON", options.settings.get("spark.pyspark.python", sys.executable))
        if options.on_loopback:  # its web page listens there, too, for which Spark has no setting
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        known = dict(SparkConf().getAll()) if submitted else {}
        return SparkContext.getOrCreate(SparkConf().setAll(list(settings_of(options, known).items())))
    except Exception as error:
        raise _not_started(options, error) from error
    finally:
        # PySpark's own handler would cancel all jobs of the session, also other users'.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupted)


def close_context(context: SparkContext) -> None:
    """Stop a context that was started here; a session that was joined continues."""
    if context.getConf().contains(_OURS):
        context.stop()


def refuse_unreachable(options: SparkOptions, environment: Mapping[str, str]) -> None:
    """Refuse to start Spark without master, without Java, or if nothing listens at the master's address.

    Raises:
        UsageError: It names what is missing. Spark itself would try for a minute, and print pages.
    """
    if options.master is None and "spark.master" not in options.settings:
        raise UsageError(
            "`runner` spark needs --master URL after --, such as --master spark://HOST:7077 or --master yarn; or run "
            "the command with spark-submit"
        )
    home = environment.get("JAVA_HOME")
    if shutil.which("java", path=str(Path(home, "bin")) if home else environment.get("PATH", "")) is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise UsageError(f"`runner` spark: no java in {where}; install a Java 17 runtime (openjdk-17-jre-headless)")
    errors = []
    for host, port in options.addresses:
        error = unreachable(f"{host}:{port}")
        if error is None:
            return
        errors.append(one_line(error))
    if errors:
        raise UsageError(f"`runner` spark: nothing answers at {options.master} ({'; '.join(errors)}); start it first")


def _not_started(options: SparkOptions, error: Exception) -> UsageError:
    import pyspark

    text = str(error)
    if "All masters are unresponsive" in text or "stopped SparkContext" in text:
        why = f"no Spark {pyspark.__version__} answers there; the cluster and pyspark must have the same version"
    elif "JAVA_GATEWAY_EXITED" in text:
        why = f"Java ended immediately, see its lines above; Spark {pyspark.__version__} needs Java 17 or newer"
    else:
        why = str(explained(text))
    return UsageError(f"`runner` spark: Spark was not started for {options.master or 'this session'}: {why}")


def explained(text: str) -> DataprepError:
    """Return an error of one line for the text of an exception of PySpark or of its gateway to Java."""
    for pattern, meaning in _PYTHONS:
        if found := re.search(pattern, text):
            shown = shortened(found["found"], _LONGEST)
            return UsageError("`runner` spark: " + meaning.format(found=shown, package=f"{DISTRIBUTION} {__version__}"))
    gone = "Answer from Java side is empty" in text or "Connection refused" in text
    line = shortened(" ".join(("Spark's Java process has ended" if gone else _cause(text)).split()), _LONGEST)
    return BuildError(f"`runner` spark: {line}. Run the same command again: it continues where it stopped")


def _cause(text: str) -> str:
    """Return the line that names the cause: of a Python traceback its last line, of a Java one its first."""
    if "Traceback (most recent call last)" in text:
        traceback = re.split(r"\n\s*SQLSTATE|\n\tat ", text.partition("Traceback (most recent call last)")[2])[0]
        return traceback.strip().rpartition("\n")[2]
    for pattern in _CAUSES:
        if found := re.search(pattern, text):
            return found[1]
    return text.strip().partition("\n")[0]


POLL_S = 0.1
CANCEL_S = 15.0
"""Deadline for the end of a cancelled job."""
ADVICE = "give each executor more memory with --conf spark.executor.memoryOverhead=1g after --, or fewer cores"


def check(choice: EngineChoice) -> None:
    """Refuse options that this engine does not have. Raises UsageError."""
    spark_options(choice.options)
    if choice.detach:
        raise UsageError(
            f"`detach` with `runner` {choice.runner}: its job ends with this command; submit the command itself with "
            "spark-submit --deploy-mode cluster"
        )


def shards_at_once(choice: EngineChoice, _urls: tuple[str, ...]) -> int:
    """Return the number of tasks that the cluster runs at the same time; the context that is started for this stays."""
    context = open_context(spark_options(choice.options))
    try:
        return cores_at_most(dict(context.getConf().getAll()))
    except UsageError:
        close_context(context)
        raise


@contextmanager
def open_engine(choice: EngineChoice, work: EngineWork) -> Iterator[Engine]:
    """Start a context or join the running one, and check a node before anything is planned. Raises UsageError if the
    cluster cannot be reached, or its workers run another Python, lack this version of dataprep, or cannot read the
    originals."""
    context = open_context(spark_options(choice.options))
    try:
        node = NodeTask(source_paths(work.source_url), choice.runner)
        list(receipts_in(run_tasks(context, node, [0]), work.warn, ADVICE))
        yield partial(_build, context, work)
    finally:
        close_context(context)


def _build(context: SparkContext, work: EngineWork, job: BuildJob, indexes: list[int]) -> Iterator[ShardReceipt]:
    task = shard_task(job, "spark", work.stall_s)
    yield from receipts_in(run_tasks(context, task, indexes), work.warn, ADVICE)


class Answers:
    """Accumulates the answers of tasks, for `SparkContext.accumulator`. The driver takes them from the left of the
    same deque while Spark's thread adds others on the right."""

    def zero(self, _value: deque[Answer]) -> deque[Answer]:
        """Return the initial value of a task."""
        return deque()

    def addInPlace(self, value1: deque[Answer], value2: deque[Answer]) -> deque[Answer]:
        """Add the answers of a task."""
        value1.extend(value2)
        return value1


@dataclass(slots=True)
class _Job:
    context: SparkContext
    group: str
    error: Exception | None = None

    def run(self, task: Task, indexes: Sequence[int], answers: Any) -> None:
        """Run the job and wait for it, in a thread that Py4J knows, because the job's group belongs to the thread."""
        try:
            self.context.setJobGroup(self.group, "dataprep build", interruptOnCancel=True)
            partitions = self.context.parallelize(indexes, len(indexes))
            partitions.foreachPartition(partial(run_partition, task, answers))
        except Exception as error:  # noqa: BLE001  `run_tasks` raises it, explained
            self.error = error


def run_partition(task: Task, answers: Any, indexes: Iterable[int]) -> None:
    """Run a task on an executor for the index of a partition, unless its worker was lost too often."""
    from pyspark import TaskContext

    context = TaskContext.get()
    losses = 0 if context is None else context.attemptNumber()
    for index in indexes:
        lost = Answer(index, Lost(f"lost its worker {losses} times"))
        answers.add(deque([lost if losses >= MAX_DEATHS else task(index)]))


def run_tasks(context: SparkContext, task: Task, indexes: Sequence[int]) -> Iterator[Answer]:
    """Run a task for each index, and yield the answers as they arrive; when the caller stops, the job is cancelled.
    Raises DataprepError if the job has failed."""
    from pyspark import InheritableThread

    arrived = context.accumulator(deque(), Answers())
    job = _Job(context, f"dataprep-{uuid.uuid4().hex}")
    thread = InheritableThread(target=job.run, args=(task, indexes, arrived), daemon=True)
    missing = len(indexes)
    thread.start()
    try:
        while thread.is_alive() or arrived.value:
            beat()
            thread.join(POLL_S)
            while arrived.value:
                missing -= 1
                yield arrived.value.popleft()
        if job.error is not None or missing:
            raise explained(str(job.error or f"the job ended without {missing} of {len(indexes)} shards"))
    finally:
        if thread.is_alive():
            with suppress(Exception):  # Spark may be gone
                context.cancelJobGroup(job.group)
            thread.join(CANCEL_S)
