"""What each runner needs, and what is said when it is missing."""

import socket
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from dataprep.errors import UsageError
from pipelines.beam.runners import REFUSED, RUNNERS, check_name, fetchers, prepare_arguments

BUCKETS = ("gs://bucket/originals", "gs://bucket/out")
DATAFLOW = ("--project=p", "--region=us-central1", "--temp_location=gs://b/t", "--sdk_container_image=image")


@contextmanager
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def silent_address():
    with listening() as address:
        return address


@pytest.mark.parametrize("runner", REFUSED)
def test_runners_that_lose_data_are_refused_with_the_reason(runner):
    with pytest.raises(UsageError, match=f"`runner` {runner} is refused: it "):
        check_name(runner)


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match=f"Quick: unknown; expected local, ray, spark or one of {', '.join(RUNNERS)}"):
        check_name("Quick")


def test_the_local_runner_gets_the_number_of_workers():
    assert prepare_arguments("FnApiRunner", 3, []) == [
        "--direct_running_mode=multi_processing",
        "--direct_num_workers=3",
    ]
    assert prepare_arguments("FnApiRunner", 1, []) == []


def test_workers_on_other_machines_need_code_and_a_bucket(monkeypatch):
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: closing_nothing())
    service = ["--job_endpoint=cluster:8099"]
    with pytest.raises(UsageError, match="workers on other machines have no dataprep; give --environment_type=DOCKER"):
        prepare_arguments("PortableRunner", 1, service, BUCKETS)
    docker = [*service, "--environment_type=DOCKER", "--environment_config=image"]
    assert prepare_arguments("PortableRunner", 1, docker, BUCKETS) == docker
    with pytest.raises(UsageError, match="workers on other machines cannot reach /originals; copy it to a bucket"):
        prepare_arguments("PortableRunner", 1, docker, ["/originals", BUCKETS[1]])
    with pytest.raises(UsageError, match="--environment_type=DOCKER needs --environment_config"):
        prepare_arguments("PortableRunner", 1, [*service, "--environment_type=DOCKER"], BUCKETS)


def closing_nothing():
    return socket.socket()


def test_a_job_service_and_its_pool_must_answer():
    with pytest.raises(UsageError, match="`runner` PortableRunner needs --job_endpoint=HOST:PORT of a job service"):
        prepare_arguments("PortableRunner", 1, [])
    with pytest.raises(UsageError, match=r"nothing answers at --job_endpoint=127\.0\.0\.1"):
        prepare_arguments("PortableRunner", 1, [f"--job_endpoint={silent_address()}"])
    with listening() as endpoint:
        given = [f"--job_endpoint={endpoint}", "--environment_type=EXTERNAL"]
        with pytest.raises(UsageError, match=r"nothing answers at --environment_config=127\.0\.0\.1"):
            prepare_arguments("PortableRunner", 1, [*given, f"--environment_config={silent_address()}"])
        given.append(f"--environment_config={endpoint}")
        assert prepare_arguments("PortableRunner", 1, given) == given


def test_dataflow_needs_a_region_code_and_buckets():
    for missing in range(3):
        given = [option for index, option in enumerate(DATAFLOW) if index != missing]
        with pytest.raises(UsageError, match=f"`runner` DataflowRunner needs {DATAFLOW[missing].partition('=')[0]}="):
            prepare_arguments("DataflowRunner", 1, given, BUCKETS)
    with pytest.raises(UsageError, match="its workers have no dataprep; give --sdk_container_image=IMAGE"):
        prepare_arguments("DataflowRunner", 1, DATAFLOW[:3], BUCKETS)
    with pytest.raises(UsageError, match="cannot reach /out; copy it to a bucket"):
        prepare_arguments("DataflowRunner", 1, DATAFLOW, [BUCKETS[0], "/out"])
    threads = "--number_of_worker_harness_threads=1"
    assert prepare_arguments("DataflowRunner", 1, DATAFLOW, BUCKETS) == [*DATAFLOW, threads]


def test_workers_that_install_a_wheel_get_the_drivers_versions_of_all_that_it_needs():
    given = [*DATAFLOW[:3], "--extra_package=dist/tpu_dataprep-0.2.0.whl"]
    prepared = prepare_arguments("DataflowRunner", 1, given, BUCKETS)
    (file,) = [word.partition("=")[2] for word in prepared if word.startswith("--requirements_file=")]
    pins = dict(line.split("==") for line in Path(file).read_text().splitlines())
    assert {name: pins[name] for name in ("pillow", "pyarrow", "simplejpeg", "opencv-python-headless", "aiohttp")} == {
        name: version(name) for name in ("pillow", "pyarrow", "simplejpeg", "opencv-python-headless", "aiohttp")
    }
    assert not {"apache-beam", "torch", "tpu-dataprep"} & set(pins), "the image has Beam, and no worker needs torch"
    assert "--requirements_cache=skip" in prepared
    private = prepare_arguments("DataflowRunner", 1, [*given, "--no_use_public_ips"], BUCKETS)
    assert "--requirements_cache=skip" not in private, "they reach no index, so Beam stages the packages"
    own = prepare_arguments("DataflowRunner", 1, [*given, "--requirements_file=mine.txt"], BUCKETS)
    assert not any(word.startswith("--requirements_file=/") for word in own)


@pytest.mark.parametrize(
    ("runner", "arguments", "expected"),
    [
        ("FnApiRunner", ["--direct_num_workers=5"], 5),
        ("PortableRunner", ["--job_endpoint=h:1"], 3),
        ("DataflowRunner", ["--max_num_workers=4", "--machine_type=n2-standard-4"], 16),
        ("DataflowRunner", ["--max_num_workers=4", "--machine_type=n1-custom-6-3072"], 24),
        ("DataflowRunner", ["--max_num_workers", "2", "--worker_machine_type", "c3-standard-8-lssd"], 16),
        (
            "DataflowRunner",
            ["--max_num_workers=4", "--machine_type=e2-highcpu-16", "--experiments=no_use_multiple_sdk_containers"],
            4,
        ),
    ],
)
def test_hosts_are_asked_by_as_many_processes_as_the_runner_starts(runner, arguments, expected):
    """A process on Dataflow for each vCPU, whatever its threads: they share a fetcher."""
    assert fetchers(runner, 3, arguments) == expected


@pytest.mark.parametrize("given", [["--max_num_workers=4"], ["--machine_type=n2-standard-4"], ["--max_num_workers=0"]])
def test_dataflow_must_be_told_how_many_processes_it_may_start(given):
    with pytest.raises(UsageError, match="needs --max_num_workers=N and --machine_type=TYPE"):
        fetchers("DataflowRunner", 3, given)


@pytest.mark.parametrize("machine", ["a2-highgpu-1g", "e2-medium", "big"])
def test_machine_types_that_do_not_tell_their_vcpus_are_refused(machine):
    with pytest.raises(UsageError, match=f"--machine_type={machine}: its name does not say how many vCPUs it has"):
        fetchers("DataflowRunner", 3, ["--max_num_workers=4", f"--machine_type={machine}"])
