"""The engine of `--runner local`: a supervised pool of processes of this machine, for all shards or for one part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from dataprep.builder.job import BuildJob, Engine, begin_shard
from dataprep.builder.pool import Pool
from dataprep.builder.recipe import recipe_of
from dataprep.dataset.records import ShardReceipt
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from pipelines.parts import part_engine
from pipelines.protocol import EngineChoice, EngineWork

_BUCKET_MODULES = ("google.cloud.storage", "obstore.store")


def check(choice: EngineChoice) -> None:
    """Refuse options of other engines. Raises UsageError."""
    if choice.options:
        raise UsageError(
            f"got options {' '.join(choice.options)} for another engine than --runner {choice.runner}, which has none; "
            "name that engine with --runner"
        )
    if choice.detach:
        raise UsageError(f"--detach with --runner {choice.runner}: its workers end with this command; leave one out")


def shards_at_once(choice: EngineChoice, _urls: tuple[str, ...]) -> int:
    """Return the number of processes; the other parts are taken to have as many."""
    return choice.workers * (1 if choice.part is None else choice.part.count)


@contextmanager
def open_engine(choice: EngineChoice, work: EngineWork) -> Iterator[Engine]:
    """Open a pool; its modules are imported while the originals are listed and planned."""
    on_disk = open_storage(work.source_url).is_local and open_storage(work.output_url).is_local
    modules = recipe_of(work.dataset).worker_modules
    preload = modules if on_disk else (*modules, *_BUCKET_MODULES)
    with Pool(choice.workers, work.warn, preload=preload, stall_s=work.stall_s) as pool:

        def build(
            job: BuildJob, indexes: Iterable[int], is_left: Callable[[int], bool] = lambda _: True
        ) -> Iterator[ShardReceipt]:
            return pool.run(partial(begin_shard, job), indexes, is_left)

        yield build if choice.part is None else part_engine(choice.part, choice.workers, build, work.log)
