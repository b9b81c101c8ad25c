"""The graph of a build: linear, small whatever the dataset, and nothing in it that is nobody's business."""

import json
import socket
from pathlib import Path

import pytest

import dataprep.builder.plan as plans
from dataprep.builder.driver import run_build
from dataprep.builder.job import BuildJob
from dataprep.builder.output import OvertakenError, open_build
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from tests.support.build_here import Killed, Quiet, request
from tests.support.builds import digests
from tests.support.memory_growth import MemoryGrowth
from tests.support.on_use import on_use

Pipeline = on_use("apache_beam:Pipeline")
beam_runner_api_pb2 = on_use("apache_beam.portability.api:beam_runner_api_pb2")
DataflowRunner = on_use("apache_beam.runners.dataflow.dataflow_runner:DataflowRunner")
run_pipeline = on_use("pipelines.beam.engine:run_pipeline")
pipeline_options = on_use("pipelines.beam.options:pipeline_options")
build_graph = on_use("pipelines.beam.transforms:build_graph")
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
    pipeline = Pipeline(runner=runner, options=pipeline_options("DataflowRunner", [*DATAFLOW, *places]))
    build_graph(pipeline, JOB, indexes)
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
    assert {"ShardIndexes", "BuildShards/SpreadShards", "BuildShards/BuildShard"} <= names


def beam_workers(job, indexes):
    """Let Beam's workers build these shards; they are threads of this process."""
    run_pipeline("FnApiRunner", (), job, indexes)


@pytest.mark.filterwarnings("ignore")
def test_a_beam_worker_with_other_codecs_refuses_naming_both_versions(originals, tmp_path, monkeypatch):
    def engine(job, indexes):
        here = plans.codec_versions()
        monkeypatch.setattr(plans, "codec_versions", lambda *more: here | {"pillow": "0.0.1"})
        open_build.cache_clear()  # a worker is a process of its own
        with pytest.raises(
            UsageError, match=f"this worker has pillow 0.0.1, the plan was made with .*{here['pillow']}"
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
