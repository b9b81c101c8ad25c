"""Builds on a real Ray cluster of node processes on loopback: the same bytes, whichever process, node or driver dies.

`make cluster-test KILLS=30` kills at random moments, each kind so often.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from dataprep.builder.recipe import BuildJob
from dataprep.errors import BuildError
from pipelines.ray.engine import ADVICE, Run, connect, ray_options
from pipelines.task import NodeTask, ShardTask, receipts_in
from tests.conftest import BUCKET
from tests.support.builds import build_arguments, command, dataprep, digests, is_finished
from tests.support.crashes import receipts_of
from tests.support.map_kills import column_digests, kill_maps, map_words
from tests.support.other_environment import OTHER_PILLOW, other_environment
from tests.support.picture_web import laion_arguments, picture_web
from tests.support.ray_shards import POISONOUS, numbered, slow

STORE_BYTES = 80 << 20
"""Memory of a node's object store; receipts need none of it."""
# So that a node that was killed is found dead after seconds; Ray waits half a minute.
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
TITLE = "ray::run_task"
"""Title of processes that build a shard."""
IDLE_S = 300.0


@dataclass(slots=True)
class RayCluster:
    """The cluster, and its nodes in the order in which they joined."""

    cluster: Any
    nodes: list[Any] = field(default_factory=list)

    @property
    def options(self) -> tuple[str, ...]:
        """Options that `--runner ray` takes after `--`."""
        return (f"--address={self.cluster.address}",)

    def add_node(self, **settings: Any) -> Any:
        """Let a node of one CPU join."""
        self.nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, **settings))
        return self.nodes[-1]

    def kill_node(self) -> None:
        """Kill all processes of the node that joined first."""
        node = self.nodes.pop(0)
        raylet = psutil.Process(_raylet_pid(node))
        for process in (*raylet.children(recursive=True), raylet):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Kill all processes of the head. The nodes end, too, when they have tried to reach it for a while."""
        head = self.cluster.head_node
        for kind in ("gcs_server", "raylet"):
            for found in head.all_processes[kind]:
                os.kill(found.process.pid, signal.SIGKILL)

    def workers(self, *nodes: Any) -> list[int]:
        """Return the processes that build shards, on these nodes or on all."""
        found = []
        for node in nodes or self.nodes:
            for process in psutil.Process(_raylet_pid(node)).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any(TITLE in word for word in process.cmdline()):
                        found.append(process.pid)
        return found

    def kill_worker(self) -> None:
        """Kill a process that builds shards, if there is one."""
        for pid in self.workers()[:1]:
            os.kill(pid, signal.SIGKILL)

    def await_idle(self) -> None:
        """Wait until no process builds shards."""
        deadline_s = time.monotonic() + IDLE_S
        while time.monotonic() < deadline_s:
            if not self.workers():
                return
            time.sleep(0.05)
        raise AssertionError("workers are left")


def _raylet_pid(node: Any) -> int:
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


@contextlib.contextmanager
def ray_cluster(nodes: int) -> Iterator[RayCluster]:
    """Start a head and nodes; they are gone afterwards."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "_system_config": HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        running = RayCluster(cluster)
        for _ in range(nodes):
            running.add_node()
        yield running
    finally:
        cluster.shutdown()


KILLS = int(os.environ.get("KILLS", "1"))
SHARDS = ("--split", "train", "--num-shards", 12)
ROWS = 96
LATENCY_MS = 100
"""Latency of the bucket, so that a build is still at work when something is killed."""
BUILD_S = 900


@pytest.fixture(scope="module")
def running(gcs):
    """The cluster; its nodes and their workers find the emulated bucket through the environment."""
    with ray_cluster(nodes=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(running, gcs):
    """The cluster with two nodes, and a slow bucket."""
    while len(running.nodes) < 2:
        running.add_node()
    gcs.set_latency(LATENCY_MS)
    return running


@pytest.fixture(scope="module")
def imagenet(gcs, originals):
    """The command line of a build, and the digests of one on this machine."""

    def line(output, *more):
        return build_arguments("imagenet", originals["imagenet"], output, "webdataset", *SHARDS, *more)

    return line, reference(line, f"gs://{BUCKET}/ray-reference/imagenet")


@pytest.fixture(scope="module")
def laion(gcs, tmp_path_factory):
    with picture_web() as web:
        web.faults = {3: 404, 12: 503}
        table = web.write_table(tmp_path_factory.mktemp("table") / "laion.parquet", ROWS)

        def line(output, *more):
            return laion_arguments(table, output, "webdataset", *more)

        yield line, reference(line, f"gs://{BUCKET}/ray-reference/laion")


def reference(line, output):
    run = dataprep(*line(output))
    assert run.returncode == 0, run.stderr[-2000:]
    return digests(output)


def start(words, cluster, *more):
    arguments = command(*words, "--runner", "ray", *more, "--", *cluster.options)
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, output, expected):
    """Wait for the end, which must be a whole dataset, and return what was said."""
    out, errors = process.communicate(timeout=BUILD_S)
    assert process.returncode == 0, errors[-3000:]
    assert json.loads(out)["url"] == output, "stdout is the result alone"
    assert digests(output) == expected
    return errors


def await_receipts(process, output, count):
    """Wait until so many shards are done; False if the build has ended before."""
    deadline_s = time.monotonic() + BUILD_S
    while time.monotonic() < deadline_s:
        if len(receipts_of(output)) >= count:
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.02)
    raise AssertionError("no shard was built")


def some_receipts(kill):
    """Number of receipts before a kill: always the first time, later at random."""
    return 2 if kill == 0 else random.randint(1, 9)


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_build_survives_the_death_of_a_worker(kill, cluster, imagenet, bucket_url):
    line, expected = imagenet
    process = start(line(bucket_url), cluster)
    if await_receipts(process, bucket_url, some_receipts(kill)):
        cluster.kill_worker()
    errors = finish(process, bucket_url, expected)
    assert kill or "the task will be retried" in errors


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_build_of_a_table_of_urls_survives_the_death_of_a_node(kill, cluster, laion, bucket_url):
    line, expected = laion
    process = start(line(bucket_url), cluster)
    if await_receipts(process, bucket_url, some_receipts(kill)):
        cluster.kill_node()
    finish(process, bucket_url, expected)


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_build_whose_nodes_are_all_lost_goes_on_when_one_joins(kill, cluster, imagenet, bucket_url):
    line, expected = imagenet
    process = start(line(bucket_url), cluster)
    await_receipts(process, bucket_url, some_receipts(kill))
    cluster.kill_node()
    cluster.kill_node()
    done = len(receipts_of(bucket_url))
    cluster.add_node()
    joined_s = time.monotonic()
    if done < SHARDS[-1] and await_receipts(process, bucket_url, done + 1):
        print(f"the new node had built a shard {time.monotonic() - joined_s:.1f} s after it had joined")
    finish(process, bucket_url, expected)


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_node_that_joins_late_gets_work(kill, cluster, imagenet, bucket_url):
    line, expected = imagenet
    cluster.kill_node()
    process = start(line(bucket_url), cluster)
    assert await_receipts(process, bucket_url, 1)
    cluster.add_node()
    joined_s = time.monotonic()
    while process.poll() is None and not cluster.workers(cluster.nodes[-1]):
        time.sleep(0.02)
    assert process.poll() is None, "the build was over before"
    print(f"the late node had work {time.monotonic() - joined_s:.1f} s after it had joined")
    finish(process, bucket_url, expected)


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_driver_that_is_killed_takes_its_workers_along_and_one_rerun_finishes(kill, cluster, imagenet, bucket_url):
    line, expected = imagenet
    process = start(line(bucket_url), cluster)
    await_receipts(process, bucket_url, some_receipts(kill))
    process.kill()
    process.communicate()
    cluster.await_idle()
    assert kill or not is_finished(bucket_url)
    finish(start(line(bucket_url), cluster), bucket_url, expected)


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_build_whose_head_is_killed_ends_and_one_rerun_finishes(kill, gcs, imagenet, bucket_url, monkeypatch):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    line, expected = imagenet
    gcs.set_latency(LATENCY_MS)
    with ray_cluster(nodes=1) as cluster:
        process = start(line(bucket_url), cluster)
        await_receipts(process, bucket_url, some_receipts(kill))
        cluster.kill_head()
        process.communicate(timeout=BUILD_S)
        assert kill or process.returncode != 0
        assert kill or not is_finished(bucket_url)
    with ray_cluster(nodes=1) as cluster:
        finish(start(line(bucket_url), cluster), bucket_url, expected)


@pytest.mark.parametrize("kill", range(KILLS))
def test_columns_survive_killed_drivers_and_workers(kill, cluster, originals, tmp_path):
    root, rng = tmp_path / "out", random.Random(kill)
    reference(lambda output: build_arguments("imagenet", originals["imagenet"], output, "webdataset", *SHARDS), root)
    assert dataprep(*map_words(root)).returncode == 0
    expected = column_digests(root)
    shutil.rmtree(root / "columns")
    ray = ["--runner", "ray", "--", *cluster.options]
    kill_maps(rng, root, expected, 1, [ray], kill_worker=lambda pid: cluster.kill_worker())


def test_ctrl_c_ends_the_workers(cluster, imagenet, bucket_url):
    line, _expected = imagenet
    process = start(line(bucket_url), cluster)
    assert await_receipts(process, bucket_url, 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=BUILD_S)
    assert process.returncode not in (0, None)
    assert "Traceback" not in errors
    cluster.await_idle()
    assert not is_finished(bucket_url)


@pytest.fixture
def connected(cluster):
    """The lines that the user gets."""
    lines = []
    connect(ray_options(cluster.options), lines.append)
    yield lines
    ray.shutdown()


def run_of(task, indexes, *options, most=None):
    return Run(task, tuple(indexes), ray_options(options), most)


def shard_task(build, output="", stall_s=60.0):
    return ShardTask(BuildJob(str(output), "", "", "archives"), NodeTask((), "ray"), stall_s, build)


def indexes_of(run, lines):
    return sorted(receipt.index for receipt in receipts_in(run.answers(), lines.append, ADVICE))


def test_a_shard_that_kills_its_workers_is_set_aside_and_named_at_the_end(connected):
    built = []
    said = rf"1 of the shards .*: shard {POISONOUS}: lost its worker 3 times, last: .*; if it ran .* --memory=GIB"
    with pytest.raises(BuildError, match=said):
        built.extend(
            receipt.index for receipt in receipts_in(run_of(numbered, range(8)).answers(), connected.append, ADVICE)
        )
    assert sorted(built) == [index for index in range(8) if index != POISONOUS]
    assert sum("the task will be retried" in line for line in connected) == 2
    assert any("set aside" in line for line in connected)


def test_a_shard_whose_workers_ray_kills_for_want_of_memory_is_set_aside(cluster, connected):
    """Ray would try it again for ever."""
    low = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100"}
    cluster.add_node(env_vars=low, resources={"low": 1})
    with pytest.raises(BuildError, match=r"shard 0: lost its worker 3 times, .*running low on memory.*--memory=GIB"):
        indexes_of(run_of(slow, [0], "--resource=low=1"), connected)
    cluster.nodes.insert(0, cluster.nodes.pop())
    cluster.kill_node()
    assert sum("due to oom" in line for line in connected) == 2


def test_a_build_of_many_shards_has_few_tasks_in_flight(connected, monkeypatch):
    counts, wait = [], ray.wait
    monkeypatch.setattr(ray, "wait", lambda refs, **options: counts.append(len(refs)) or wait(refs, **options))
    indexes = [index + POISONOUS + 1 for index in range(300)]
    assert indexes_of(run_of(numbered, indexes), connected) == indexes
    assert max(counts) == 64
    assert indexes_of(run_of(numbered, indexes, most=3), connected) == indexes
    assert max(counts[-100:]) <= 3


def test_a_node_with_another_pillow_is_refused(cluster, imagenet, bucket_url, tmp_path):
    line, _expected = imagenet
    while cluster.nodes:
        cluster.kill_node()
    folder = other_environment(tmp_path).parents[1] / f"lib/python3.{sys.version_info.minor}/site-packages"
    cluster.add_node(env_vars={"PYTHONPATH": str(folder)})
    _, errors = start(line(bucket_url), cluster).communicate(timeout=BUILD_S)
    cluster.kill_node()
    assert f"this worker has pillow {OTHER_PILLOW}, but the plan was made with pillow {version('pillow')}" in errors
    assert "Traceback" not in errors
    assert not is_finished(bucket_url)


def test_a_silent_address_is_refused(tmp_path, imagenet):
    line, _expected = imagenet
    run = dataprep(*line(tmp_path / "out", "--runner", "ray", "--", "--address=127.0.0.1:9"))
    assert run.returncode == 2
    assert "nothing answers at --address=127.0.0.1:9" in run.stderr
    assert not Path(tmp_path, "out").exists()
