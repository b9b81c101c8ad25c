"""The part of Spark's engine that needs no Spark; what runs on a cluster is in tests/cluster/test_spark.py."""

import os
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import BuildError, UsageError
from pipelines.engines import EngineChoice
from pipelines.spark.engine import (
    Answers,
    SparkOptions,
    check,
    cores_at_most,
    explained,
    open_context,
    refuse_unreachable,
    run_partition,
    settings_of,
    spark_options,
)
from pipelines.task import Answer, Lost
from tests.support.job_service import free_port
from tests.support.markdown import ROOT


def test_a_job_cannot_be_left_running():
    with pytest.raises(UsageError, match=r"`detach` with `runner` spark: .* spark-submit --deploy-mode cluster"):
        check(EngineChoice(runner="spark", workers=1, detach=True))


class Collected(list):
    add = list.extend


@pytest.mark.parametrize(
    ("losses", "answer"),
    [(None, Answer(4, None)), (2, Answer(4, None)), (3, Answer(4, Lost("lost its worker 3 times")))],
)
def test_a_shard_is_tried_until_it_has_lost_three_workers(losses, answer, monkeypatch):
    context = None if losses is None else SimpleNamespace(attemptNumber=lambda: losses)
    spark = SimpleNamespace(TaskContext=SimpleNamespace(get=lambda: context))
    monkeypatch.setitem(sys.modules, "pyspark", spark)
    collected = Collected()
    run_partition(lambda index: Answer(index, None), collected, [4])
    assert collected == [answer]


def test_answers_are_collected_and_taken_from_the_left():
    answers = Answers()
    value = answers.zero(deque([1]))
    assert value == deque()
    assert answers.addInPlace(answers.addInPlace(value, deque([1])), deque([2, 3])) is value
    assert [value.popleft() for _ in range(3)] == [1, 2, 3]


LOG_FILE = Path(ROOT, "pipelines/spark/log4j2.properties").as_uri()
NAMES = st.from_regex(r"spark\.[a-z]{1,8}\.[a-zA-Z]{1,12}", fullmatch=True)
VALUES = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=20)


@given(st.dictionaries(NAMES, VALUES), st.booleans())
def test_options_are_parsed_as_spark_submit_parses_them(settings, joined):
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    if joined:
        words = [f"{flag}={value}" for flag, value in zip(words[::2], words[1::2], strict=True)]
    found = spark_options([*words, "--master", "spark://host:7077"])
    assert found == SparkOptions("spark://host:7077", settings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--executor-cores", "2"],
            "unrecognized arguments: --executor-cores 2 after --; the options are --master=URL",
        ),
        (["--master"], "argument --master: expected one argument after --"),
        (["--conf", "spark.cores.max"], "--conf spark.cores.max: expected NAME=VALUE"),
        (["--conf", "cores=2"], "--conf cores=2: expected NAME=VALUE with a name that begins with spark."),
        (["--master", "local[4]"], "expected spark://HOST:PORT, yarn or k8s://URL; use `runner` local for this"),
        (["--master", "sc://host:15002"], "and spark-submit where there is only Spark Connect, which runs no tasks"),
        (["--master", "host:7077"], "--master host:7077: expected spark://HOST:PORT, yarn or k8s://URL"),
        (["--master", "spark://host"], "--master spark://host: expected spark://HOST:PORT, such as"),
        (["--master", "spark://host:99999"], "expected spark://HOST:PORT, such as"),
    ],
)
def test_what_cannot_work_is_refused_with_what_was_expected(words, message):
    with pytest.raises(UsageError, match=message):
        spark_options(words)


def test_a_standalone_cluster_may_have_several_masters():
    options = spark_options(["--master", "spark://one:7077,[::1]:7078"])
    assert options.addresses == [("one", 7077), ("[::1]", 7078)]
    assert not options.on_loopback
    assert spark_options(["--master=spark://[::1]:7077,localhost:7078"]).on_loopback
    assert not spark_options(["--master=yarn"]).on_loopback


def test_the_users_settings_come_first_and_then_those_of_spark_submit():
    options = spark_options(["--master", "yarn", "--conf", "spark.executor.memory=2g"])
    known = {"spark.executor.memory": "8g", "spark.app.name": "nightly", "spark.speculation": "true"}
    settings = settings_of(options, known)
    assert settings["spark.executor.memory"] == "2g"
    assert settings["spark.app.name"] == "nightly"
    assert settings["spark.master"] == "yarn"
    assert settings["spark.speculation"] == "true"
    assert settings["spark.executorEnv.OPENBLAS_NUM_THREADS"] == "1"
    assert "spark.driver.host" not in settings


def test_a_driver_of_a_cluster_on_loopback_listens_there_only():
    settings = settings_of(spark_options(["--master", "spark://127.0.0.1:7077"]), {})
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"


def test_spark_logs_errors_only_unless_the_user_has_a_configuration():
    def java_options(*words: str) -> str:
        return settings_of(spark_options(words), {})["spark.driver.extraJavaOptions"]

    assert java_options() == f"-Dlog4j2.configurationFile={LOG_FILE}"
    assert (
        java_options("--conf", "spark.driver.extraJavaOptions=-Xss4m")
        == f"-Dlog4j2.configurationFile={LOG_FILE} -Xss4m"
    )
    own = "-Dlog4j2.configurationFile=mine.properties"
    assert java_options("--conf", f"spark.driver.extraJavaOptions={own}") == own


DYNAMIC = {"spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "4"}


@pytest.mark.parametrize(
    ("settings", "at_most"),
    [
        ({"spark.cores.max": "64"}, 64),
        ({"spark.cores.max": "64", "spark.task.cpus": "2"}, 32),
        ({"spark.cores.max": "4", "spark.task.cpus": "32"}, 1),
        ({"spark.executor.instances": "10", "spark.executor.cores": "4"}, 40),
        ({"spark.executor.instances": "10"}, 10),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "50"}, 200),
    ],
)
def test_hosts_are_asked_by_as_many_as_the_settings_allow(settings, at_most):
    assert cores_at_most(settings) == at_most


@pytest.mark.parametrize("settings", [{}, DYNAMIC, DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "infinity"}])
def test_executors_without_a_limit_are_refused_where_hosts_are_asked(settings):
    with pytest.raises(UsageError, match=r"with a table of URLs needs --conf spark\.cores\.max=N after --"):
        cores_at_most(settings)


@pytest.fixture
def java(tmp_path):
    """A folder with a program of Java's name."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").touch(mode=0o755)
    return tmp_path


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(UsageError, match=r"`runner` spark: .*; pip install '.*\[spark\]'"):
        open_context(SparkOptions("yarn"))


def test_a_master_is_needed(java):
    with pytest.raises(UsageError, match=r"needs --master URL after --, .*; or run the command with spark-submit"):
        refuse_unreachable(SparkOptions(), {"JAVA_HOME": str(java)})
    refuse_unreachable(SparkOptions(settings={"spark.master": "yarn"}), {"JAVA_HOME": str(java)})


def test_a_missing_java_is_named_with_the_place_that_was_searched(tmp_path, java):
    options = SparkOptions("yarn")
    with pytest.raises(UsageError, match="no java in PATH; install a Java 17 runtime"):
        refuse_unreachable(options, {"PATH": str(tmp_path / "none")})
    with pytest.raises(UsageError, match=f"no java in JAVA_HOME={tmp_path}/none; install"):
        refuse_unreachable(options, {"JAVA_HOME": f"{tmp_path}/none", "PATH": str(java / "bin")})
    refuse_unreachable(options, {"PATH": str(java / "bin")})


def test_an_address_at_which_nothing_listens_is_refused_at_once(java):
    master = f"spark://127.0.0.1:{free_port()}"
    with pytest.raises(UsageError, match=f"nothing answers at {master} .*Connection refused.*; start it first"):
        refuse_unreachable(SparkOptions(master), {"PATH": os.fspath(java / "bin")})


CALL = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n: "
TRACE = "\n\tat org.apache.spark.api.python.PythonRunner$$anon$5.read(PythonRunner.scala:1642)"
WORKER = (
    f"{CALL}org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python "
    'worker: Traceback (most recent call last):\n  File "/opt/pyspark/worker.py", line 4327, in invoke_udf\n'
    "    run_process()\n"
)
LOST = (
    f"{CALL}org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, "
    "most recent failure: Lost task 1.3 in stage 0.0 (TID 5) (127.0.0.1 executor 0): "
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{WORKER}pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker "
            "has different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.\n"
            f"Please check environment variables PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON.\n SQLSTATE: 38000{TRACE}",
            r"the workers' Python is 3\.12, this command's is 3\.\d+; set PYSPARK_PYTHON to a Python 3\.\d+ that is on",
        ),
        (
            f'{LOST}java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory{TRACE}',
            r"a worker cannot start /opt/python; set PYSPARK_PYTHON to a Python 3\.\d+ that is on every node, with",
        ),
        (
            f"{LOST}org.apache.spark.SparkException: \nError from python worker:\n  pyenv: python3.12: not found\n"
            f"PYTHONPATH was:\n  /opt/pyspark.zip{TRACE}",
            r"a worker's Python does not start: pyenv: python3\.12: not found; set PYSPARK_PYTHON to a Python 3",
        ),
        (
            f"{WORKER}ModuleNotFoundError: No module named 'pipelines.spark'\n SQLSTATE: 38000{TRACE}",
            r"the workers' Python has no module pipelines\.spark; install tpu-dataprep \S+ and the packages",
        ),
    ],
)
def test_workers_that_cannot_build_are_explained_with_what_to_set(text, message):
    error = explained(text)
    assert isinstance(error, UsageError)
    with pytest.raises(UsageError, match=message):
        raise error


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"{WORKER}MemoryError: no memory\n SQLSTATE: 38000{TRACE}", "MemoryError: no memory"),
        (
            f"{LOST}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).{TRACE}",
            r"org.apache.spark.SparkException: Python worker exited unexpectedly \(crashed\).",
        ),
        (
            f"{CALL}org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 0 cancelled by the administrator{TRACE}",
            "Job 0 cancelled by the administrator",
        ),
        (f"{CALL}java.lang.IllegalStateException: stopped{TRACE}", "java.lang.IllegalStateException: stopped"),
        ("Answer from Java side is empty", "Spark's Java process has ended"),
        ("something else\nwith more", "something else"),
    ],
)
def test_a_job_that_failed_is_told_by_the_line_that_names_the_cause(text, cause):
    error = explained(text)
    assert isinstance(error, BuildError)
    with pytest.raises(BuildError, match=f"^`runner` spark: {cause}. Run the same command again: it continues where"):
        raise error


@given(st.text(max_size=400))
def test_any_text_becomes_one_short_line(text):
    line = str(explained(text))
    assert "\n" not in line
    assert len(line) < 600
