"""What each runner needs, and what is said when it is missing."""

import http.server
import json
import socket
import threading
from contextlib import contextmanager

import pytest

from dataprep.errors import UsageError
from pipelines.beam.runners import (
    BEAM_VERSION,
    REFUSED,
    RUNNERS,
    check_name,
    engines_folder,
    prepare_arguments,
    shards_at_once,
)

BUCKETS = ("gs://bucket/originals", "gs://bucket/out")
DATAFLOW = ("--project=p", "--region=us-central1", "--temp_location=gs://b/t", "--sdk_container_image=image")


@pytest.fixture
def engines(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    folder = engines_folder()
    folder.mkdir(parents=True)
    return folder


def program(folder, name):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).touch(mode=0o755)
    return folder / name


@contextmanager
def flink(version="1.19.3", slots=4, managers=2):
    """What a JobManager's REST interface says of itself."""
    pages = {"/overview": {"flink-version": version, "slots-total": slots, "taskmanagers": managers}}

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(pages[self.path]).encode())

        def log_message(self, *arguments):
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def silent_address():
    with listening() as address:
        return address


@pytest.mark.parametrize("runner", REFUSED)
def test_runners_that_lose_data_are_refused_with_the_reason(runner):
    with pytest.raises(UsageError, match=f"--runner {runner} is refused: it "):
        check_name(runner)


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match=f"Quick: unknown; expected local, ray or one of {', '.join(RUNNERS)}"):
        check_name("Quick")


def test_the_local_runner_gets_the_number_of_workers():
    assert prepare_arguments("FnApiRunner", 3, []) == [
        "--direct_running_mode=multi_processing",
        "--direct_num_workers=3",
    ]
    assert prepare_arguments("FnApiRunner", 1, []) == []


def test_flink_is_asked_for_its_version_and_slots(engines):
    program(engines.parents[1] / "bin", "java")
    jar = program(engines, f"beam-runners-flink-1.19-job-server-{BEAM_VERSION}.jar")
    with flink() as master:
        given = ["--flink_master", master, "--number_of_execution_retries=1"]
        prepared = prepare_arguments("FlinkRunner", 1, given, ["/originals", "/out"])
    assert prepared == [
        *given,
        "--flink_version=1.19",
        "--parallelism=4",
        "--sdk_worker_parallelism=2",
        f"--flink_job_server_jar={jar}",
        "--environment_type=LOOPBACK",
        "--experiments=use_loopback_process_worker",
    ]


def test_a_flink_of_another_version_needs_its_own_job_server(engines):
    program(engines.parents[1] / "bin", "java")
    artifact = "beam-runners-flink-2.0-job-server"
    program(engines, f"beam-runners-flink-1.19-job-server-{BEAM_VERSION}.jar")
    with (
        flink("2.0.1") as master,
        pytest.raises(UsageError, match=rf"no \S+{artifact}\S+; get it with: mvn \S+ -Dartifact=org\.apache\.beam:"),
    ):
        prepare_arguments("FlinkRunner", 1, [f"--flink_master={master}"])


def test_a_missing_java_slot_or_flink_is_refused_with_the_next_step(engines):
    with pytest.raises(UsageError, match="no java in PATH; install a Java 17 runtime"):
        prepare_arguments("FlinkRunner", 1, [])
    with flink(slots=0, managers=0) as master, pytest.raises(UsageError, match="no task slots; start a TaskManager"):
        prepare_arguments("FlinkRunner", 1, [f"--flink_master={master}"])
    with pytest.raises(UsageError, match=r"no Flink answers at http://127\.0\.0\.1"):
        prepare_arguments("FlinkRunner", 1, [f"--flink_master={silent_address()}"])


def test_workers_on_other_machines_need_code_and_a_bucket():
    spark = ["--spark_master_url=spark://cluster:7077", f"--spark_job_server_jar={__file__}"]
    spark.append("--job_server_java_launcher=/bin/sh")
    with pytest.raises(UsageError, match="workers on other machines have no dataprep; give --environment_type=DOCKER"):
        prepare_arguments("SparkRunner", 1, spark, BUCKETS)
    docker = [*spark, "--environment_type=DOCKER", "--environment_config=image"]
    assert prepare_arguments("SparkRunner", 1, docker, BUCKETS) == docker
    with pytest.raises(UsageError, match="workers on other machines cannot reach /originals; copy it to a bucket"):
        prepare_arguments("SparkRunner", 1, docker, ["/originals", BUCKETS[1]])
    with pytest.raises(UsageError, match="--environment_type=DOCKER needs --environment_config"):
        prepare_arguments("SparkRunner", 1, [*spark, "--environment_type=DOCKER"], BUCKETS)


def test_a_job_service_and_its_pool_must_answer():
    with pytest.raises(UsageError, match="--runner PortableRunner needs --job_endpoint=HOST:PORT of a job service"):
        prepare_arguments("PortableRunner", 1, [])
    with pytest.raises(UsageError, match=r"nothing answers at --job_endpoint=127\.0\.0\.1"):
        prepare_arguments("PortableRunner", 1, [f"--job_endpoint={silent_address()}"])
    with listening() as endpoint:
        given = [f"--job_endpoint={endpoint}", "--environment_type=EXTERNAL"]
        with pytest.raises(UsageError, match=r"nothing answers at --environment_config=127\.0\.0\.1"):
            prepare_arguments("PortableRunner", 1, [*given, f"--environment_config={silent_address()}"])
        given.append(f"--environment_config={endpoint}")
        assert prepare_arguments("PortableRunner", 1, given) == given


def test_prism_is_searched_in_path_and_never_downloaded(engines):
    command = rf"GOBIN={engines} go install \S+/prism@v{BEAM_VERSION}"
    with pytest.raises(UsageError, match=f"no prism binary .none in PATH.; get it with: {command}"):
        prepare_arguments("PrismRunner", 1, [])
    binary = program(engines, "prism")
    assert f"--prism_location={binary}" in prepare_arguments("PrismRunner", 1, [])


def test_dataflow_needs_a_region_code_and_buckets():
    for missing in range(3):
        given = [option for index, option in enumerate(DATAFLOW) if index != missing]
        with pytest.raises(UsageError, match=f"--runner DataflowRunner needs {DATAFLOW[missing].partition('=')[0]}="):
            prepare_arguments("DataflowRunner", 1, given, BUCKETS)
    with pytest.raises(UsageError, match="its workers have no dataprep; give --sdk_container_image=IMAGE"):
        prepare_arguments("DataflowRunner", 1, DATAFLOW[:3], BUCKETS)
    with pytest.raises(UsageError, match="cannot reach /out; copy it to a bucket"):
        prepare_arguments("DataflowRunner", 1, DATAFLOW, [BUCKETS[0], "/out"])
    assert prepare_arguments("DataflowRunner", 1, DATAFLOW, BUCKETS) == list(DATAFLOW)


@pytest.mark.parametrize(
    ("runner", "arguments", "expected"),
    [
        ("FnApiRunner", ["--direct_num_workers=5"], 5),
        ("FlinkRunner", ["--parallelism", "12"], 12),
        ("PrismRunner", [], 3),
        ("SparkRunner", ["--spark_master_url=spark://h:7077"], 3),
        ("DataflowRunner", ["--max_num_workers=4", "--number_of_worker_harness_threads=2"], 8),
    ],
)
def test_a_job_has_as_many_shards_in_progress_as_its_runner_is_told(runner, arguments, expected):
    assert shards_at_once(runner, 3, arguments) == expected


def test_dataflow_must_be_told_how_many_shards_to_build_at_once():
    with pytest.raises(UsageError, match="needs --max_num_workers=N and --number_of_worker_harness_threads=N"):
        shards_at_once("DataflowRunner", 3, ["--max_num_workers=4"])
