"""The engine of `--runner ray`: builds shards on a cluster, or follows the detached job that does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import ray

from dataprep.builder.job import BuildJob, Engine, begin_shard
from dataprep.builder.recipe import recipe_named
from dataprep.dataset.records import ShardReceipt
from dataprep.storage import open_storage
from pipelines.protocol import DetachedJob, EngineChoice, EngineWork
from pipelines.ray.cluster import Cluster, connect, disconnect, explained
from pipelines.ray.detached import detached_job, detached_text, follow, job_name, start_detached
from pipelines.ray.options import RayOptions, ray_options, refuse_local_paths
from pipelines.ray.supervisor import WEB_WINDOW, WINDOW, RayRun, supervise


def check(choice: EngineChoice) -> None:
    """Refuse options that are none of this engine. Raises UsageError."""
    ray_options(choice.options)


def shards_at_once(choice: EngineChoice, _urls: tuple[str, ...]) -> int:
    """Return the number of processes: that of the options, or those for which the cluster has room now."""
    options = ray_options(choice.options)
    return options.processes or max(1, connect(options).room)


@contextmanager
def open_engine(choice: EngineChoice, work: EngineWork) -> Iterator[Engine]:
    """Connect to the cluster.

    Raises:
        UsageError: No cluster answers at the address, it runs another Ray or Python, or its other machines cannot
            see the originals or the output.
    """
    options = ray_options(choice.options)
    cluster = connect(options)
    refuse_local_paths(options, (work.source_url, work.output_url), cluster.other_hosts)
    try:
        yield partial(_build, options, cluster, work, choice.detach)
    finally:
        disconnect()


def _build(
    options: RayOptions, cluster: Cluster, work: EngineWork, detach: bool, job: BuildJob, indexes: list[int]
) -> Iterator[ShardReceipt]:
    """Build shards, or follow the detached job that does."""
    # A worker has another working directory.
    job = replace(job, output_url=open_storage(job.output_url).url, source_url=open_storage(job.source_url).url)
    is_web = job.recipe == "web"
    # The limits for web hosts were divided by this number; a node that joins later replaces one that is lost.
    most = options.processes or (max(1, cluster.room) if is_web else None)
    run = RayRun(
        partial(begin_shard, job),
        tuple(indexes),
        replace(options, processes=most),
        work.stall_s,
        window=WEB_WINDOW if is_web else WINDOW,
        modules=recipe_named(job.recipe).worker_modules,
    )
    name = job_name(job)
    with explained():
        running = detached_job(name)
        if running is None and not detach:
            yield from supervise(run, work.warn)
            return
        if running is None:
            running = start_detached(run, name, work)
        if not detach:
            yield from follow(running, job, indexes, work)
            return
        done, _lines, error = ray.get(running.state.remote())
        if error is not None:
            ray.kill(running)
            raise error
        raise DetachedJob(name, detached_text(name, cluster.address, done, len(indexes)))
