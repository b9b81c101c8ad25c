"""The same bytes on Beam's services, with a bucket as source and target (`make cluster-test CLUSTER=beam`).

Each engine is a real one on loopback: the portable job service with its pool of workers, and for Dataflow its runner
against a service that runs what was staged. Lost workers are real deaths.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from dataprep.storage import open_storage
from pipelines.beam.engine import _runner, pipeline_options, prepare_arguments
from tests.conftest import BUCKET
from tests.support.builds import build, build_arguments, command, dataprep, digests, is_finished
from tests.support.crashes import receipts_of
from tests.support.dataflow_stub import dataflow_stub
from tests.support.job_service import JobService, job_service
from tests.support.picture_web import laion_arguments, picture_web

DATASETS = {"imagenet": "imagenet", "coco-dup5": "coco"}
FORMATS = ("webdataset", "tfrecord")
BUILD_S = 240
KILLS = int(os.environ.get("KILLS", "1"))
"""Kills of each kind."""
SHARDS = ("--split", "train", "--num-shards", 8)
LAION_ROWS = 64
DATAFLOW = (
    "--project=project",
    "--region=us-central1",
    f"--temp_location=gs://{BUCKET}/tmp",
    "--no_auth",
    "--sdk_location=container",
    "--sdk_container_image=registry/dataprep:1",
    "--machine_type=n2-standard-4",
    "--max_num_workers=2",
)


@pytest.fixture(scope="session")
def in_bucket(originals, gcs) -> dict[str, str]:
    """The originals as objects."""
    urls = {}
    for dataset, name in DATASETS.items():
        urls[dataset] = f"gs://{BUCKET}/originals/{name}"
        for path in originals[name].iterdir():
            open_storage(urls[dataset]).create(path.name, path.read_bytes())
    return urls


@pytest.fixture(scope="session", params=[(dataset, fmt) for dataset in DATASETS for fmt in FORMATS], ids="-".join)
def reference(request, in_bucket):
    """A build of the local pool, and its digests."""
    dataset, fmt = request.param
    output = f"gs://{BUCKET}/reference/{dataset}-{fmt}"
    build(dataset, in_bucket[dataset], output, fmt, *SHARDS)
    return dataset, fmt, in_bucket[dataset], digests(output)


@pytest.fixture(scope="session")
def portable(gcs) -> Iterator[JobService]:
    with job_service() as service:
        yield service


@pytest.fixture(params=["PortableRunner", "DataflowRunner"])
def engine(request) -> Iterator[list[object]]:
    """The arguments of a build for each engine."""
    runner = request.param
    with ExitStack() as stack:
        if runner == "DataflowRunner":
            stub = stack.enter_context(dataflow_stub())
            options = (*DATAFLOW, f"--dataflow_endpoint={stub.url}")
        else:
            options = request.getfixturevalue("portable").options
        yield ["--runner", runner, "--workers", 2, "--", *options]


def test_an_engine_writes_the_bytes_of_a_local_build(reference, engine, bucket_url):
    dataset, fmt, source, expected = reference
    started_s = time.monotonic()
    run = dataprep(*build_arguments(dataset, source, bucket_url, fmt, *SHARDS, *engine), timeout_s=BUILD_S)
    assert run.returncode == 0, run.stderr[-3000:]
    assert digests(bucket_url) == expected
    print(f"{engine[1]} {dataset} {fmt}: {time.monotonic() - started_s:.1f} s")


@pytest.fixture(scope="session", params=FORMATS)
def laion(request, gcs, tmp_path_factory) -> Iterator[tuple[Callable[..., list[object]], dict[str, str]]]:
    """The command line of an output and more arguments, and the digests of the local pool's build."""
    with picture_web() as web:
        web.faults = {3: 404, 12: 503}
        table = web.write_table(tmp_path_factory.mktemp("table") / "laion.parquet", LAION_ROWS)
        source, output = (
            f"gs://{BUCKET}/originals/{table.parent.name}",
            f"gs://{BUCKET}/reference/laion-{request.param}",
        )
        open_storage(source).create(table.name, table.read_bytes())

        def line(output: str, *more: object) -> list[object]:
            return laion_arguments(source, output, request.param, *more)

        run = dataprep(*line(output), timeout_s=BUILD_S)
        assert run.returncode == 0, run.stderr[-2000:]
        yield line, digests(output)


def test_an_engine_writes_the_bytes_of_a_local_build_of_a_table_of_urls(laion, engine, bucket_url):
    line, expected = laion
    run = dataprep(*line(bucket_url, *engine), timeout_s=BUILD_S)
    assert run.returncode == 0, run.stderr[-3000:]
    assert digests(bucket_url) == expected


@pytest.fixture
def slow_bucket(gcs):
    """So slow that a build is still under way when something is killed."""
    gcs.set_latency(150)
    yield
    gcs.set_latency(0)


@pytest.fixture
def with_python_workers(portable) -> list[object]:
    """The arguments of a build whose Python workers run here."""
    return ["--runner", "PortableRunner", "--", *portable.options]


@pytest.mark.parametrize("reference", [("imagenet", "tfrecord")], indirect=True)
@pytest.mark.parametrize("kill", range(KILLS))
def test_a_build_survives_the_death_of_a_python_worker(kill, with_python_workers, reference, bucket_url, slow_bucket):
    dataset, fmt, source, expected = reference
    line = build_arguments(dataset, source, bucket_url, fmt, *SHARDS, *with_python_workers)
    lost(line, bucket_url, expected, kill_python_worker)


@pytest.mark.parametrize("laion", ["tfrecord"], indirect=True)
@pytest.mark.parametrize("kill", range(KILLS))
def test_a_build_survives_the_death_of_a_python_worker_that_fetches(
    kill, with_python_workers, laion, bucket_url, slow_bucket
):
    line, expected = laion
    lost(line(bucket_url, *with_python_workers), bucket_url, expected, kill_python_worker)


def lost(build_line: list[object], output: str, expected: dict[str, str], kill: Callable[[], object]) -> None:
    """Build, kill when a first shard stands, and build again if that was the end of it."""
    stalled = [*build_line[: build_line.index("--")], "--stall-minutes", 0.5, *build_line[build_line.index("--") :]]
    process = subprocess.Popen(command(*stalled), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_receipts(process, output)
        stood = receipts_of(output)
        kill()
        _, errors = process.communicate(timeout=BUILD_S)
    finally:
        process.kill()
    if process.returncode:
        assert "Run the same command again: it continues where it stopped" in errors, errors[-2000:]
        assert "Traceback" not in errors
        assert not is_finished(output)
        assert stood <= receipts_of(output)
        again = dataprep(*build_line, timeout_s=BUILD_S)
        assert again.returncode == 0, again.stderr[-2000:]
    assert digests(output) == expected
    print(f"{len(stood)} shards stood; {'one rerun' if process.returncode else 'the job finished by itself'}")


def wait_for_receipts(process: subprocess.Popen[str], output: str) -> None:
    deadline_s = time.monotonic() + BUILD_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, process.communicate()[1][-2000:]
        if receipts_of(output):
            return
        time.sleep(0.05)
    raise AssertionError("no shard was built")


def kill_python_worker() -> None:
    """Kill a Python worker of the running engine: Beam's harness, started by a pool of workers."""
    workers = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if b"SdkHarness" in path.read_bytes() and ours(int(path.parent.name)):
                workers.append(int(path.parent.name))
    assert workers, "no Python worker runs"
    os.kill(workers[0], signal.SIGKILL)


def ours(pid: int) -> bool:
    """Whether this process, or one that it started, started it."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return False


@pytest.mark.parametrize("reference", [("imagenet", "tfrecord")], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ending_the_driver_cancels_the_job(number, reference, bucket_url, slow_bucket):
    dataset, fmt, source, expected = reference
    with dataflow_stub() as stub:
        options = ["--runner", "DataflowRunner", "--", *DATAFLOW, f"--dataflow_endpoint={stub.url}"]
        line = build_arguments(dataset, source, bucket_url, fmt, *SHARDS, *options)
        process = subprocess.Popen(command(*line), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_for_receipts(process, bucket_url)
        process.send_signal(number)
        process.communicate(timeout=BUILD_S)
        assert process.returncode != 0
        wait_until(lambda: [job.state for job in stub.jobs.values()] == ["CANCELLED"])
        assert not is_finished(bucket_url)
    build(dataset, source, bucket_url, fmt, *SHARDS)
    assert digests(bucket_url) == expected


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


@pytest.mark.parametrize("waiting", ["QUEUED", "RUNNING"])
def test_a_job_that_waits_for_machines_is_cancelled_by_the_user_only(waiting, in_bucket, bucket_url):
    """In FlexRS's queue, or begun and without a machine, for three times --stall-minutes."""
    stall_s = 6
    with dataflow_stub() as stub:
        stub.waiting = waiting
        options = ["--runner", "DataflowRunner", "--stall-minutes", stall_s / 60, "--", *DATAFLOW]
        options.append(f"--dataflow_endpoint={stub.url}")
        line = build_arguments("imagenet", in_bucket["imagenet"], bucket_url, "tfrecord", *SHARDS, *options)
        process = subprocess.Popen(command(*line), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: stub.jobs)
        time.sleep(3 * stall_s)
        (job,) = stub.jobs.values()
        assert process.poll() is None and not job.cancelled
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=BUILD_S)
        wait_until(lambda: job.cancelled)


@pytest.fixture(params=["PortableRunner", "DataflowRunner"])
def service(request) -> Iterator[list[object]]:
    """The arguments of a build whose job goes on without the command."""
    with ExitStack() as stack:
        if request.param == "DataflowRunner":
            stub = stack.enter_context(dataflow_stub())
            options = (*DATAFLOW, f"--dataflow_endpoint={stub.url}")
        else:
            options = request.getfixturevalue("portable").options
        yield ["--runner", request.param, "--detach", "--", *options]


@pytest.mark.parametrize("reference", [("imagenet", "tfrecord")], indirect=True)
def test_a_detached_job_goes_on_and_the_same_command_finishes_the_dataset(service, reference, bucket_url, slow_bucket):
    dataset, fmt, source, expected = reference
    line = build_arguments(dataset, source, bucket_url, fmt, *SHARDS, *service)
    first = dataprep(*line, timeout_s=BUILD_S)
    assert first.returncode == 0, first.stderr[-2000:]
    job = json.loads(first.stdout)["job"]
    assert not is_finished(bucket_url)
    again = dataprep(*line, timeout_s=BUILD_S)
    assert again.returncode == 0, again.stderr[-2000:]
    assert is_finished(bucket_url) or json.loads(again.stdout)["job"] == job, "another job was submitted"
    waiting = [word for word in line if word != "--detach"]
    if len(receipts_of(bucket_url)) < 8 and not is_finished(bucket_url):
        refused = dataprep(*waiting, timeout_s=BUILD_S)
        assert "an earlier run left it behind with --detach" in refused.stderr or refused.returncode == 0
    wait_until(lambda: is_finished(bucket_url) or len(receipts_of(bucket_url)) == 8, BUILD_S)
    last = dataprep(*line, timeout_s=BUILD_S)
    assert last.returncode == 0, last.stderr[-2000:]
    assert digests(bucket_url) == expected


def test_the_fullest_worker_has_at_most_a_fifth_more_than_its_share(tmp_path):
    """With four shards for each worker, on Beam's own runner with processes."""
    import apache_beam as beam

    workers, shards = 3, 13
    options = pipeline_options("FnApiRunner", prepare_arguments("FnApiRunner", workers, ()))
    pipeline = beam.Pipeline(runner=_runner("FnApiRunner", options), options=options)
    spread = pipeline | beam.Create(range(shards), reshuffle=False) | beam.Reshuffle()
    folder = str(tmp_path)
    _ = spread | beam.Map(lambda index: Path(folder, f"{os.getpid()}-{index}").touch())
    pipeline.run().wait_until_finish()
    counts = Counter(path.name.partition("-")[0] for path in tmp_path.iterdir())
    assert (len(counts), counts.total()) == (workers, shards)
    assert max(counts.values()) <= 1.2 * shards / workers
