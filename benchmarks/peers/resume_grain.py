"""Grain in two ways: its DataLoader with a sampler, and ElasticIterator for changes of the number of hosts.

`loader` is the DataLoader of its tutorial with the state of every rank's iterator, as the guide to checkpoints says.
`elastic` is `grain.experimental.ElasticIterator`, for which the state of any rank is that of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
from array_record.python.array_record_module import ArrayRecordWriter
from grain.experimental import ElasticIterator
from resume_rank import SEED, Contender, Life, photographs, run

SEPARATOR = b"\0"
RECORDS = "photographs.array_record"


class Grain(Contender):
    """Records of ArrayRecord: the key, then the photograph."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self._batches = iter(self._elastic() if life.variant == "elastic" else self._loader())

    def _loader(self) -> Any:
        shard = grain.sharding.ShardOptions(self.life.rank, self.life.world_size, drop_remainder=True)
        source = grain.sources.ArrayRecordDataSource(str(self.life.data / RECORDS))
        sampler = grain.samplers.IndexSampler(
            num_records=len(source), num_epochs=1, shard_options=shard, shuffle=True, seed=SEED
        )
        operations = [_Key(), grain.transforms.Batch(self.life.rank_batch, drop_remainder=True)]
        return grain.DataLoader(data_source=source, sampler=sampler, operations=operations)

    def _elastic(self) -> Any:
        shard = grain.sharding.ShardOptions(self.life.rank, self.life.world_size)
        source = grain.sources.ArrayRecordDataSource(str(self.life.data / RECORDS))
        return ElasticIterator(
            grain.MapDataset.source(source).seed(SEED).shuffle().map(_key), self.life.batch_size, shard
        )

    def steps(self) -> Iterator[list[str]]:
        of_rank = 0 if self.life.variant == "elastic" else None
        if (before := self.life.state_before(of_rank)) is not None:
            self._batches.set_state(_loaded(before.read_bytes(), self.life.variant))
        for keys in self._batches:
            yield [str(key) for key in keys]

    def save(self, path: Path) -> None:
        state = self._batches.get_state()
        path.write_bytes(state if isinstance(state, bytes) else repr(state).encode())


def _loaded(state: bytes, variant: str) -> Any:
    import ast

    return ast.literal_eval(state.decode()) if variant == "elastic" else state


def _key(record: bytes) -> str:
    return record.partition(SEPARATOR)[0].decode()


class _Key(grain.transforms.Map):
    def map(self, record: bytes) -> str:
        return _key(record)


def write(order: Path, out: Path) -> None:
    """Write one file of ArrayRecord."""
    out.mkdir()
    writer = ArrayRecordWriter(str(out / RECORDS), "group_size:1")
    for key, image in photographs(order):
        writer.write(key.encode() + SEPARATOR + image)
    writer.close()


if __name__ == "__main__":
    run(Grain, write)
