"""A build that goes on in the cluster after its command has ended."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import ray
import ray.exceptions

from dataprep.builder.job import BuildJob
from dataprep.builder.receipts import ReceiptWatch
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import BuildError, DataprepError
from dataprep.host.heartbeat import beat
from dataprep.messages import one_line
from dataprep.storage import open_storage
from pipelines.protocol import EngineWork
from pipelines.ray.cluster import NAMESPACE, nodes_alive
from pipelines.ray.supervisor import RayRun, supervise

_STARTS_AGAIN = 3
"""Number of times that Ray starts the driver of a detached job again."""
_KEPT_LINES = 20
_HEAD = "node:__internal_head__"
"""Resource of the cluster's head, by Ray's name."""


def job_name(job: BuildJob) -> str:
    """Return the name of the detached job that builds this."""
    return f"dataprep-{hashlib.sha256(f'{job.output_url} {job.root}'.encode()).hexdigest()[:12]}"


class DetachedDriver:
    """An actor that supervises a build after its command has ended; Ray starts it again if its node is lost."""

    def __init__(self, run: RayRun) -> None:
        self._run = run
        self._done = 0
        self._lines: list[str] = []
        self._error: DataprepError | None = None
        self._actor = ray.get_runtime_context().current_actor
        threading.Thread(target=self._supervise, daemon=True).start()

    def state(self) -> tuple[int, list[str], DataprepError | None]:
        """Return the number of shards done, the last lines for the user, and the error with which the job ended."""
        return self._done, self._lines, self._error

    def _supervise(self) -> None:
        try:
            for _receipt in supervise(self._run, self._log):
                self._done += 1
        except Exception as error:  # noqa: BLE001  the next command shows it
            self._error = error if isinstance(error, DataprepError) else BuildError(f"ray: {one_line(error)}")
            return
        ray.kill(self._actor)

    def _log(self, line: str) -> None:
        self._lines = [*self._lines, line][-_KEPT_LINES:]


def detached_job(name: str) -> Any | None:
    """Return the actor of a detached job; None if there is none."""
    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def start_detached(run: RayRun, name: str, work: EngineWork) -> Any:
    """Start a detached job and return its actor."""
    head = {_HEAD: 0.001} if any(_HEAD in node["Resources"] for node in nodes_alive()) else None
    work.log(f"ray: {name} builds {len(run.indexes)} shards")
    return (
        ray.remote(DetachedDriver)
        .options(
            name=name, lifetime="detached", num_cpus=0, resources=head, max_restarts=_STARTS_AGAIN, max_concurrency=2
        )
        .remote(run)
    )


def detached_text(name: str, address: str, done: int, shards: int) -> str:
    """Return what the user must know of a detached job that is at work."""
    stop = f"import ray; ray.init('{address}', namespace='{NAMESPACE}'); ray.kill(ray.get_actor('{name}'))"
    return (
        f"{name} runs on the cluster, {done} of {shards} shards are done. Run the same command later: it finishes the "
        f'dataset when all are done. To cancel the job: python -c "{stop}"'
    )


def follow(running: Any, job: BuildJob, indexes: list[int], work: EngineWork) -> Iterator[ShardReceipt]:
    """Wait for the end of a detached job; its progress is read from the receipts."""
    work.log(f"ray: {job_name(job)} is at work; waiting for its end, Ctrl-C leaves it running")
    receipts = ReceiptWatch(open_storage(job.output_url), job.root, indexes)
    while receipts.missing:
        beat()
        time.sleep(receipts.wait_s)
        try:
            _done, _lines, error = ray.get(running.state.remote())
        except ray.exceptions.RayActorError:  # it ends itself when it is done
            yield from receipts.receipts(now=True)
            break
        if error is not None:
            ray.kill(running)
            raise error
        yield from receipts.receipts()
    if receipts.missing:
        raise BuildError(
            f"ray: {job_name(job)} is gone; {len(receipts.missing)} of {len(indexes)} shards are missing. Run the "
            "same command again: it goes on where it stopped"
        )
