"""Builds on a Beam runner: the graph, options, states of jobs, jobs left behind, and when a job counts as hanging."""

import json
import socket
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

import dataprep.builder.plan as plans
from dataprep.builder.driver import run_build
from dataprep.builder.output import OvertakenError, open_build
from dataprep.builder.recipe import BuildJob
from dataprep.errors import BuildError, FormatError, SourceError, UsageError
from dataprep.storage import open_storage
from pipelines.engines import EngineChoice
from tests.support.build_here import Killed, Quiet, request
from tests.support.builds import build_arguments, dataprep, digests
from tests.support.memory_growth import MemoryGrowth
from tests.support.on_use import on_use

engine = on_use("pipelines.beam.engine")
cause = on_use("pipelines.beam.engine:_cause")
DataflowPipelineResult = on_use("apache_beam.runners.dataflow.dataflow_runner:DataflowPipelineResult")
dataflow = on_use("google.cloud.dataflow_v1beta3")
Pipeline = on_use("apache_beam:Pipeline")
beam_runner_api_pb2 = on_use("apache_beam.portability.api:beam_runner_api_pb2")
DataflowRunner = on_use("apache_beam.runners.dataflow.dataflow_runner:DataflowRunner")


def test_an_error_of_dataprep_passes_through_beam_unchanged(originals, tmp_path):
    run = dataprep(
        *build_arguments("coco-dup5", originals["coco"], tmp_path / "out", "tfrecord", "--on-bad", "fail"),
        "--runner",
        "FnApiRunner",
        "--workers",
        1,
    )
    assert run.returncode == 1
    assert "expected a valid JPEG (--on-bad fail)" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Traceback\n  raise\ndataprep.errors.UsageError: a b [while running 'X/Y']\n\nmore", UsageError("a b")),
        ("failed: Traceback\ndataprep.errors.SourceError: gone", SourceError("gone")),
        ("Traceback\ndataprep.builder.output.OvertakenError: was overtaken", BuildError("was overtaken")),
    ],
)
def test_the_error_of_a_worker_is_found_in_the_text_that_a_service_returns(text, expected):
    found = cause(RuntimeError(text))
    assert (type(found), str(found)) == (type(expected), str(expected))


def test_a_job_of_this_machine_cannot_be_left_behind():
    with pytest.raises(UsageError, match="`detach` with `runner` FnApiRunner: its job ends with this command"):
        engine.check(EngineChoice(runner="FnApiRunner", workers=2, detach=True))


def test_options_of_the_command_line_reach_beam():
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    options = engine.pipeline_options(
        "DataflowRunner", ["--project=p", "--region=us-central1", "--temp_location=gs://b/t"]
    )
    cloud = options.view_as(GoogleCloudOptions)
    assert (cloud.project, cloud.region, cloud.temp_location) == ("p", "us-central1", "gs://b/t")


ROOT = "_build/hash/id"


def test_the_last_job_that_was_left_behind_is_remembered(storage_url):
    storage = open_storage(storage_url)
    storage.create(f"{ROOT}/begun", b"")
    assert engine.left_job(storage, ROOT) is None
    for name in ("first", "second"):
        engine.remember(storage, ROOT, engine.LeftJob("DataflowRunner", name))
    assert engine.left_job(storage, ROOT) == engine.LeftJob("DataflowRunner", "second")


def test_a_damaged_note_of_a_job_is_refused(tmp_path):
    storage = open_storage(str(tmp_path))
    storage.create(f"{ROOT}/detached.json", b"[1]")
    with pytest.raises(FormatError, match=r"detached\.json.*remove it"):
        engine.left_job(storage, ROOT)


class Service:
    """Beam's client of Dataflow, with one job and one metric of it."""

    def __init__(self, state, metric, value):
        self.job = dataflow.Job(id="job", current_state=dataflow.JobState[f"JOB_STATE_{state}"])
        name = SimpleNamespace(name=metric)
        self.metrics = SimpleNamespace(metrics=[SimpleNamespace(name=name, scalar=value)])

    def get_job(self, job_id):
        return self.job

    def get_job_metrics(self, job_id):
        return self.metrics


def submitted(service):
    """Beam's handle of a job that was just submitted."""
    return DataflowPipelineResult(dataflow.Job(id="job"), SimpleNamespace(dataflow_client=service))


@pytest.mark.parametrize(
    ("state", "metric", "value", "expected"),
    [
        ("RUNNING", "CurrentVcpuCount", 0.0, "WAITING FOR WORKERS"),
        ("RUNNING", "TotalVcpuTime", 9.0, "WAITING FOR WORKERS"),
        ("RUNNING", "CurrentVcpuCount", 8.0, "RUNNING"),
        ("QUEUED", "CurrentVcpuCount", 0.0, "UNRECOGNIZED"),
        ("DONE", "CurrentVcpuCount", 0.0, "DONE"),
    ],
)
def test_a_job_on_dataflow_runs_from_when_it_has_machines(state, metric, value, expected):
    assert engine.state_of("DataflowRunner", submitted(Service(state, metric, value))) == expected


def test_asking_for_the_state_leaves_the_answers_of_the_thread_that_waits_for_the_end_alone():
    service = Service("RUNNING", "CurrentVcpuCount", 8.0)
    result = submitted(service)
    result._job = dataflow.Job(id="job", current_state=dataflow.JobState.JOB_STATE_DONE)
    assert engine.state_of("DataflowRunner", result) == "RUNNING"
    assert result.is_in_terminal_state(), "an older answer has taken the place of the last one"


def test_a_job_elsewhere_has_the_state_that_its_handle_says():
    assert engine.state_of("PortableRunner", SimpleNamespace(state="RUNNING")) == "RUNNING"


def test_a_job_that_ended_or_is_unknown_builds_nothing_more():
    ended = {"DONE": True, "FAILED": True, "UNKNOWN": True}
    ended |= dict.fromkeys(("RUNNING", "PENDING", "UNRECOGNIZED", "CANCELLING"), False)
    assert {state: engine.has_ended(state) for state in ended} == ended


JOB = BuildJob("gs://bucket/out", "gs://bucket/originals", "0" * 64, "archives")
IMAGE = "registry/dataprep:1"
DATAFLOW = (
    "--no_auth",
    "--sdk_location=container",
    f"--sdk_container_image={IMAGE}",
    "--project=project",
    "--region=us-central1",
    "--machine_type=n2-standard-4",
)
LAION_SHARDS = 41_408
"""Shards of LAION-400M, of 10,000 images each."""
IMAGENET_SHARDS = 5_005


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch):
    """Beam looks for credentials five times, 20 s in all; there are none, and it goes on without.

    While it looks, it gives all new sockets a timeout, which those of other tests must not have.
    """
    from apache_beam.utils.retry import Clock

    monkeypatch.setattr(Clock, "sleep", lambda _self, _seconds: None)
    before = socket.getdefaulttimeout()
    yield
    socket.setdefaulttimeout(before)


@pytest.fixture
def secrets(monkeypatch):
    """What stands in the environment and must not travel."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/someone/key.json")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return "key.json", "hf_secret", f"{Path.home()}/"


def dataflow_graph(bucket_url, indexes):
    """The pipeline that Dataflow would be sent and the template of its job, made as the command line makes them."""
    places = [f"--temp_location={bucket_url}/tmp", f"--template_location={bucket_url}/template.json"]
    runner = DataflowRunner()
    pipeline = Pipeline(runner=runner, options=engine.pipeline_options("DataflowRunner", [*DATAFLOW, *places]))
    engine.build_graph(pipeline, JOB, indexes)
    pipeline.run()
    return runner.proto_pipeline, json.loads(open_storage(bucket_url).read("template.json"))


@pytest.mark.filterwarnings("ignore")
def test_dataflow_gets_the_image_the_options_and_no_secret(secrets, bucket_url):
    proto, template = dataflow_graph(bucket_url, list(range(IMAGENET_SHARDS)))
    assert {env.urn for env in proto.components.environments.values()} == {"beam:env:docker:v1"}
    payloads = [env.payload for env in proto.components.environments.values()]
    assert {beam_runner_api_pb2.DockerPayload.FromString(payload).container_image for payload in payloads} == {IMAGE}
    options = template["environment"]["sdkPipelineOptions"]["options"]
    assert (options["region"], options["project"]) == ("us-central1", "project")
    [workers] = template["environment"]["workerPools"]
    assert workers["machineType"] == "n2-standard-4"
    assert [image["containerImage"] for image in workers["sdkHarnessContainerImages"]] == [IMAGE]
    staged = open_storage(options["pipelineUrl"].rpartition("/")[0]).read("pipeline.pb")
    assert beam_runner_api_pb2.Pipeline.FromString(staged) == proto
    for secret in secrets:
        assert secret.encode() not in staged
        assert secret not in json.dumps(template)
    assert_linear(proto)


@pytest.mark.filterwarnings("ignore")
def test_the_graph_of_the_largest_plan_is_small(bucket_url):
    growth = MemoryGrowth()
    proto, template = dataflow_graph(bucket_url, list(range(LAION_SHARDS)))
    num_bytes = len(proto.SerializeToString())
    more_mib = growth.bytes() >> 20
    few, _ = dataflow_graph(bucket_url, [0, 1, 2])
    print(f"{LAION_SHARDS:,} shards: {num_bytes:,} bytes, {more_mib} MiB")
    assert len(proto.components.transforms) == len(few.components.transforms)
    assert num_bytes < 1_000_000
    assert len(json.dumps(template)) < 1_000_000
    assert more_mib < 200


def assert_linear(proto):
    """One input and one output a step."""
    leaves = [step for step in proto.components.transforms.values() if not step.subtransforms]
    assert len(leaves) >= 3
    assert all(len(step.inputs) <= 1 and len(step.outputs) <= 1 for step in leaves)
    names = {step.unique_name for step in proto.components.transforms.values()}
    assert {"ShardIndexes", "SpreadShards", "BuildShard"} <= names


def beam_workers(job, indexes):
    """Let Beam's workers build these shards; they are threads of this process."""
    engine.run_pipeline("FnApiRunner", (), job, indexes)


@pytest.mark.filterwarnings("ignore")
def test_a_beam_worker_with_other_codecs_refuses_naming_both_versions(originals, tmp_path, monkeypatch):
    def engine(job, indexes):
        here = plans.codec_versions()
        monkeypatch.setattr(plans, "codec_versions", lambda *more: here | {"pillow": "0.0.1"})
        open_build.cache_clear()  # a worker is a process of its own
        with pytest.raises(
            UsageError, match=f"this worker has pillow 0.0.1, but the plan was made with .*{here['pillow']}"
        ):
            beam_workers(job, indexes)
        raise Killed
        yield

    with pytest.raises(Killed):
        run_build(request(originals, tmp_path / "out"), engine, Quiet())
    assert not list((tmp_path / "out").glob("val/*"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fmt", ["webdataset", "imagefolder"])
def test_a_beam_worker_of_a_build_that_was_overwritten_puts_nothing_in_place(originals, tmp_path, fmt):
    """The worker comes late twice: while the other build runs, and when that build is whole."""
    output, jobs = tmp_path / "out", []

    def killed(job, indexes):
        jobs.append(job)
        beam_workers(job, [0])
        raise Killed
        yield

    def other(job, indexes):
        before = digests(output)
        assert_overtaken(jobs[0], 1)
        assert digests(output) == before
        beam_workers(job, indexes)
        return iter(())

    with pytest.raises(Killed):
        run_build(request(originals, output, fmt, seed=1), killed, Quiet())
    run_build(request(originals, output, fmt, overwrite=True), other, Quiet())
    whole = digests(output)
    assert_overtaken(jobs[0], 2)
    assert digests(output) == whole


def assert_overtaken(job, index):
    """Neither a worker that has opened the build before builds this shard, nor one that has just been started."""
    for _ in range(2):
        with pytest.raises(OvertakenError, match="was overtaken"):
            beam_workers(job, [index])
        open_build.cache_clear()


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s


def watch(monkeypatch, lines):
    clock = Clock()
    monkeypatch.setattr("pipelines.beam.engine.time", clock)
    return engine.JobWatch("Engine", 100, lines.append), clock


def test_a_running_job_without_progress_is_warned_of_once_and_then_given_up(monkeypatch):
    lines = []
    job, clock = watch(monkeypatch, lines)
    clock.now_s = 51
    assert job.verdict(7) is None
    clock.now_s = 52
    assert job.verdict(7) is None
    assert lines == [
        "Engine: no shard was finished for 51 s, 7 are left, the job is RUNNING; it is cancelled after 100 s "
        "(`stall_minutes`)"
    ]
    clock.now_s = 101
    assert job.verdict(7) == "no shard was finished for 101 s, the job is RUNNING; it was cancelled"


def test_progress_and_a_new_state_begin_the_time_anew(monkeypatch):
    lines = []
    job, clock = watch(monkeypatch, lines)
    clock.now_s = 90
    job.progressed()
    clock.now_s = 180
    assert job.verdict(7) is None
    job.entered("UPDATING")
    clock.now_s = 280
    assert job.verdict(7) is None
    clock.now_s = 281
    assert "the job is UPDATING" in job.verdict(7)


@pytest.mark.parametrize("state", ["PENDING", "QUEUED", "UNRECOGNIZED", "WAITING FOR WORKERS"])
def test_a_job_that_waits_for_workers_is_never_given_up(monkeypatch, state):
    lines = []
    job, clock = watch(monkeypatch, lines)
    job.entered(state)
    clock.now_s = 1e6
    assert job.verdict(7) is None
    assert lines == [f"Engine: the job is {state}"]


BUCKETS = ("gs://bucket/originals", "gs://bucket/out")
GIVEN = ("--project=p", "--region=us-central1", "--temp_location=gs://b/t", "--sdk_container_image=image")


@contextmanager
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def silent_address():
    with listening() as address:
        return address


def test_runners_that_lose_data_are_refused_with_the_reason():
    for runner in engine.REFUSED:
        with pytest.raises(UsageError, match=f"`runner` {runner} is refused: it "):
            engine.check_name(runner)


def test_unknown_names_are_refused():
    with pytest.raises(
        UsageError, match=f"Quick: unknown; expected local, ray, spark or one of {', '.join(engine.RUNNERS)}"
    ):
        engine.check_name("Quick")


def test_the_local_runner_gets_the_number_of_workers():
    assert engine.prepare_arguments("FnApiRunner", 3, []) == [
        "--direct_running_mode=multi_processing",
        "--direct_num_workers=3",
    ]
    assert engine.prepare_arguments("FnApiRunner", 1, []) == []


def test_workers_on_other_machines_need_code_and_a_bucket(monkeypatch):
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: closing_nothing())
    service = ["--job_endpoint=cluster:8099"]
    with pytest.raises(UsageError, match="workers on other machines have no dataprep; give --environment_type=DOCKER"):
        engine.prepare_arguments("PortableRunner", 1, service, BUCKETS)
    docker = [*service, "--environment_type=DOCKER", "--environment_config=image"]
    assert engine.prepare_arguments("PortableRunner", 1, docker, BUCKETS) == docker
    with pytest.raises(UsageError, match="workers on other machines cannot reach /originals; copy it to a bucket"):
        engine.prepare_arguments("PortableRunner", 1, docker, ["/originals", BUCKETS[1]])
    with pytest.raises(UsageError, match="--environment_type=DOCKER needs --environment_config"):
        engine.prepare_arguments("PortableRunner", 1, [*service, "--environment_type=DOCKER"], BUCKETS)


def closing_nothing():
    return socket.socket()


def test_a_job_service_and_its_pool_must_answer():
    with pytest.raises(UsageError, match="`runner` PortableRunner needs --job_endpoint=HOST:PORT of a job service"):
        engine.prepare_arguments("PortableRunner", 1, [])
    with pytest.raises(UsageError, match=r"nothing answers at --job_endpoint=127\.0\.0\.1"):
        engine.prepare_arguments("PortableRunner", 1, [f"--job_endpoint={silent_address()}"])
    with listening() as endpoint:
        given = [f"--job_endpoint={endpoint}", "--environment_type=EXTERNAL"]
        with pytest.raises(UsageError, match=r"nothing answers at --environment_config=127\.0\.0\.1"):
            engine.prepare_arguments("PortableRunner", 1, [*given, f"--environment_config={silent_address()}"])
        given.append(f"--environment_config={endpoint}")
        assert engine.prepare_arguments("PortableRunner", 1, given) == given


def test_dataflow_needs_a_region_code_and_buckets():
    for missing in range(3):
        given = [option for index, option in enumerate(GIVEN) if index != missing]
        with pytest.raises(UsageError, match=f"`runner` DataflowRunner needs {GIVEN[missing].partition('=')[0]}="):
            engine.prepare_arguments("DataflowRunner", 1, given, BUCKETS)
    with pytest.raises(UsageError, match="its workers have no dataprep; give --sdk_container_image=IMAGE"):
        engine.prepare_arguments("DataflowRunner", 1, GIVEN[:3], BUCKETS)
    with pytest.raises(UsageError, match="cannot reach /out; copy it to a bucket"):
        engine.prepare_arguments("DataflowRunner", 1, GIVEN, [BUCKETS[0], "/out"])
    threads = "--number_of_worker_harness_threads=1"
    assert engine.prepare_arguments("DataflowRunner", 1, GIVEN, BUCKETS) == [*GIVEN, threads]


def test_workers_that_install_a_wheel_get_the_drivers_versions_of_all_that_it_needs():
    given = [*GIVEN[:3], "--extra_package=dist/tpu_dataprep-0.2.0.whl"]
    prepared = engine.prepare_arguments("DataflowRunner", 1, given, BUCKETS)
    (file,) = [word.partition("=")[2] for word in prepared if word.startswith("--requirements_file=")]
    pins = dict(line.split("==") for line in Path(file).read_text().splitlines())
    assert {name: pins[name] for name in ("pillow", "pyarrow", "simplejpeg", "opencv-python-headless", "aiohttp")} == {
        name: version(name) for name in ("pillow", "pyarrow", "simplejpeg", "opencv-python-headless", "aiohttp")
    }
    assert not {"apache-beam", "torch", "tpu-dataprep"} & set(pins), "the image has Beam, and no worker needs torch"
    assert "--requirements_cache=skip" in prepared
    private = engine.prepare_arguments("DataflowRunner", 1, [*given, "--no_use_public_ips"], BUCKETS)
    assert "--requirements_cache=skip" not in private, "they reach no index, so Beam stages the packages"
    own = engine.prepare_arguments("DataflowRunner", 1, [*given, "--requirements_file=mine.txt"], BUCKETS)
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
    assert engine.fetchers(runner, 3, arguments) == expected


@pytest.mark.parametrize("given", [["--max_num_workers=4"], ["--machine_type=n2-standard-4"], ["--max_num_workers=0"]])
def test_dataflow_must_be_told_how_many_processes_it_may_start(given):
    with pytest.raises(UsageError, match="needs --max_num_workers=N and --machine_type=TYPE"):
        engine.fetchers("DataflowRunner", 3, given)


@pytest.mark.parametrize("machine", ["a2-highgpu-1g", "e2-medium", "big"])
def test_machine_types_that_do_not_tell_their_vcpus_are_refused(machine):
    with pytest.raises(UsageError, match=f"--machine_type={machine}: its name does not say how many vCPUs it has"):
        engine.fetchers("DataflowRunner", 3, ["--max_num_workers=4", f"--machine_type={machine}"])
