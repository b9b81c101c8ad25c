import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UsageError
from pipelines.spark.options import (
    SparkOptions,
    environment_of,
    refuse_few_failures,
    settings_of,
    shards_at_once,
    spark_options,
    task_failures,
)

LOG = "file:///log4j2.properties"
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
        (["--executor-cores", "2"], "--executor-cores: no option of --runner spark; expected --master URL and --conf"),
        (["--master"], "--master needs a value, as in --master spark://HOST:7077"),
        (["--conf", "spark.cores.max"], "--conf spark.cores.max: expected NAME=VALUE"),
        (["--conf", "cores=2"], "--conf cores: expected NAME=VALUE with a name that begins with spark."),
        (["--conf", "spark.speculation=true"], "--conf spark.speculation=true is refused: a build needs "),
        (["--master", "local[4]"], r"--master local\[4\] is this machine; use --runner local, which needs no Java"),
        (["--master", "local"], "--master local is this machine"),
        (["--master", "sc://host:15002"], "Spark Connect runs no tasks of a Python program; run the command with"),
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
    settings = settings_of(options, LOG, known)
    assert settings["spark.executor.memory"] == "2g"
    assert settings["spark.app.name"] == "nightly"
    assert settings["spark.master"] == "yarn"
    assert settings["spark.speculation"] == "false"
    assert settings["spark.executorEnv.OPENBLAS_NUM_THREADS"] == "1"
    assert "spark.driver.host" not in settings


def test_a_driver_of_a_cluster_on_loopback_listens_there_only():
    settings = settings_of(spark_options(["--master", "spark://127.0.0.1:7077"]), LOG, {})
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    # Spark's web page knows neither setting, and would listen on every interface.
    assert environment_of(spark_options(["--master", "spark://127.0.0.1:7077"])) == {"SPARK_LOCAL_IP": "127.0.0.1"}
    assert environment_of(spark_options(["--master", "spark://head:7077"])) == {}


def test_spark_logs_errors_only_unless_the_user_has_a_configuration():
    def java_options(*words: str) -> str:
        return settings_of(spark_options(words), LOG, {})["spark.driver.extraJavaOptions"]

    assert java_options() == f"-Dlog4j2.configurationFile={LOG}"
    assert java_options("--conf", "spark.driver.extraJavaOptions=-Xss4m") == f"-Dlog4j2.configurationFile={LOG} -Xss4m"
    own = "-Dlog4j2.configurationFile=mine.properties"
    assert java_options("--conf", f"spark.driver.extraJavaOptions={own}") == own


@pytest.mark.parametrize(
    ("settings", "failures"),
    [
        ({}, 4),
        ({"spark.master": "yarn", "spark.task.maxFailures": "8"}, 8),
        ({"spark.master": "local[*, 4]", "spark.task.maxFailures": "8"}, 4),
        ({"spark.master": "local[2]"}, 1),
        ({"spark.master": "local"}, 1),
    ],
)
def test_the_failures_of_a_task_are_those_that_spark_allows(settings, failures):
    assert task_failures(settings) == failures


def test_a_spark_that_gives_up_before_a_shard_is_set_aside_is_refused():
    refuse_few_failures({"spark.task.maxFailures": "3"})
    with pytest.raises(UsageError, match="gives a task up after 2 failures, expected at least 3"):
        refuse_few_failures({"spark.task.maxFailures": "2"})


DYNAMIC = {"spark.dynamicAllocation.enabled": "true", "spark.executor.cores": "4"}


@pytest.mark.parametrize(
    ("settings", "at_once"),
    [
        ({}, 16),
        ({"spark.task.cpus": "2"}, 8),
        ({"spark.task.cpus": "32"}, 1),
        ({"spark.cores.max": "64"}, 64),
        ({"spark.executor.instances": "10", "spark.executor.cores": "4"}, 40),
        ({"spark.executor.instances": "2", "spark.executor.cores": "4"}, 16),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "50"}, 200),
    ],
)
def test_hosts_are_asked_by_as_many_as_the_cluster_can_run(settings, at_once):
    assert shards_at_once(settings, 16) == at_once


@given(
    st.integers(1, 10_000),
    st.fixed_dictionaries(
        {},
        optional={
            "spark.executor.instances": st.integers(1, 999).map(str),
            "spark.executor.cores": st.integers(1, 64).map(str),
            "spark.task.cpus": st.integers(1, 8).map(str),
        },
    ),
)
def test_the_number_is_never_below_what_runs_now(cores, settings):
    assert shards_at_once(settings, cores) >= max(1, cores // int(settings.get("spark.task.cpus", 1)))


@pytest.mark.parametrize("most", [{}, {"spark.dynamicAllocation.maxExecutors": "infinity"}])
def test_executors_without_a_limit_are_refused_where_hosts_are_asked(most):
    with pytest.raises(UsageError, match=r"starts executors on demand.*give --conf .*maxExecutors=N after --"):
        shards_at_once(DYNAMIC | most, 16)
