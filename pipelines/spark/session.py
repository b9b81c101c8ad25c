"""Starts or joins Spark: refuses what cannot work at once, and counts what the cluster has."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.errors import UsageError, install_hint
from dataprep.messages import one_line
from pipelines.spark.failures import explained
from pipelines.spark.options import SparkOptions, environment_of, settings_of

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S = 0.1
TELL_S = 5.0
"""Time after which the user is told that no executor has come yet."""
SETTLED_READS = 20
"""The executors of a cluster count as complete when their number was the same so often, POLL_S apart."""
EXECUTOR_S = 300.0
"""Time to wait for the first executor: a cluster that grows on demand may have to start a machine."""
REACH_S = 10.0
GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Variable that spark-submit sets for the program that it runs."""
_OURS = "spark.dataprep.started"
"""Setting that marks contexts started here, which are stopped at the end."""
_LOG_FILE = Path(__file__).with_name("log4j2.properties")


def open_context(options: SparkOptions) -> SparkContext:
    """Return the running context, or start one.

    Raises:
        UsageError: PySpark, Java or the master is missing, or Spark could not be started.
    """
    try:
        from pyspark import SparkConf, SparkContext
    except ImportError as error:
        raise UsageError(f"--runner spark needs PySpark ({error}): {install_hint('spark')}") from error
    if SparkContext._active_spark_context is not None:
        return SparkContext._active_spark_context
    submitted = GATEWAY in os.environ
    if not submitted:
        refuse_unreachable(options, os.environ)
        # The same Python as here, unless the user knows better: Spark refuses other minor versions.
        os.environ.setdefault("PYSPARK_PYTHON", options.settings.get("spark.pyspark.python", sys.executable))
        for name, value in environment_of(options).items():
            os.environ.setdefault(name, value)
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        known = dict(SparkConf().getAll()) if submitted else {}
        settings = settings_of(options, _LOG_FILE.as_uri(), known) | {_OURS: "true"}
        return SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
    except Exception as error:
        raise _not_started(options, error) from error
    finally:
        # PySpark's own handler would cancel all jobs of the session, also those of others.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupted)


def close_context(context: SparkContext) -> None:
    """Stop a context that was started here; a session that was joined goes on."""
    if context.getConf().contains(_OURS):
        context.stop()


def settings(context: SparkContext) -> dict[str, str]:
    """Return the settings of a running context."""
    return dict(context.getConf().getAll())


def refuse_unreachable(options: SparkOptions, environment: Mapping[str, str]) -> None:
    """Refuse to start Spark without master, without Java, or if nothing listens at the master's address.

    Raises:
        UsageError: It names what is missing. Spark itself would try for a minute, and print pages.
    """
    if options.master is None and "spark.master" not in options.settings:
        raise UsageError(
            "--runner spark needs --master URL after --, such as --master spark://HOST:7077 or --master yarn; or run "
            "the command with spark-submit"
        )
    home = environment.get("JAVA_HOME")
    if shutil.which("java", path=str(Path(home, "bin")) if home else environment.get("PATH", "")) is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise UsageError(f"--runner spark: no java in {where}; install a Java 17 runtime (openjdk-17-jre-headless)")
    errors = []
    for host, port in options.addresses:
        try:
            socket.create_connection((host.strip("[]"), port), timeout=REACH_S).close()
        except OSError as error:
            errors.append(one_line(error))
        else:
            return
    if errors:
        raise UsageError(f"--runner spark: nothing answers at {options.master} ({'; '.join(errors)}); start it first")


def _not_started(options: SparkOptions, error: Exception) -> UsageError:
    import pyspark

    text = str(error)
    if "All masters are unresponsive" in text or "stopped SparkContext" in text:
        why = f"no Spark {pyspark.__version__} answers there; the cluster and pyspark must have the same version"
    elif "JAVA_GATEWAY_EXITED" in text:
        why = f"Java has ended at once, see its lines above; Spark {pyspark.__version__} needs Java 17 or newer"
    else:
        why = str(explained(text))
    return UsageError(f"--runner spark: Spark was not started for {options.master or 'this session'}: {why}")


def num_executors(context: SparkContext) -> int:
    """Return the number of executors. All of them store blocks, and so does a driver that is no executor."""
    spark = context._jsc.sc()
    return int(spark.getExecutorMemoryStatus().size()) - (0 if spark.isLocal() else 1)


def await_executor(context: SparkContext, log: Callable[[str], object]) -> None:
    """Wait for the first executor. Raises UsageError if none comes within EXECUTOR_S."""
    started_s, told = time.monotonic(), False
    while not num_executors(context):
        waited_s = time.monotonic() - started_s
        if waited_s > EXECUTOR_S:
            raise UsageError(
                f"--runner spark: {context.master} has started no executor within {waited_s:.0f} s; it has no free "
                "cores, or no worker with the memory of one (spark.executor.memory, spark.executor.cores)"
            )
        if waited_s > TELL_S and not told:
            told = True
            log(f"spark: waiting for {context.master} to start an executor")
        time.sleep(POLL_S)


def settled(read: Callable[[], int], reads: int = SETTLED_READS, wait_s: float = POLL_S) -> int:
    """Return a number that grows while executors register, when it was the same for so many reads in a row."""
    found, same = read(), 1
    while same < reads:
        time.sleep(wait_s)
        before, found = found, read()
        same = same + 1 if found == before else 1
    return found
