"""Errors as Spark 4.3 writes them, shortened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import BuildError, UsageError
from pipelines.spark.failures import explained

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
            r"the workers' Python is 3\.12, this command's is 3\.11; set PYSPARK_PYTHON to a Python 3\.11 that is on",
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
    with pytest.raises(BuildError, match=f"^--runner spark: {cause}. Run the same command again: it goes on where"):
        raise error


@given(st.text(max_size=400))
def test_any_text_becomes_one_short_line(text):
    line = str(explained(text))
    assert "\n" not in line
    assert len(line) < 600
