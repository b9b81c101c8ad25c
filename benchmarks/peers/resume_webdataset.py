"""webdataset, which has no state: its author advises resampled shards, or shards split by node and counted samples.

`resampled` starts anew with `resampled=True`, as he answers everybody who asks how to resume. `split` divides shards
shuffled by a fixed seed among the nodes, and passes over as many samples as each rank has taken, with the library's
own `slice`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import webdataset
from resume_rank import SEED, WORKERS, Contender, run

BUFFER = 100
"""Samples of the shuffle buffer."""


class WebDataset(Contender):
    """The shards of `dataprep build`, read by worker processes."""

    def steps(self) -> Iterator[list[str]]:
        life = self.life
        shards = sorted(map(str, life.data.rglob("*.tar")))
        if life.variant == "resampled":
            dataset = webdataset.WebDataset(
                shards, resampled=True, shardshuffle=False, nodesplitter=webdataset.split_by_node
            )
            dataset = self._batched(dataset.shuffle(BUFFER))
            dataset = dataset.with_epoch((life.samples - life.taken) // life.batch_size)
        else:
            dataset = webdataset.WebDataset(
                shards, shardshuffle=len(shards), detshuffle=True, seed=SEED, nodesplitter=webdataset.split_by_node
            )
            dataset = dataset.compose(webdataset.detshuffle(BUFFER, seed=SEED))
            dataset = self._batched(dataset.slice(life.taken // life.world_size, life.samples))
        yield from webdataset.WebLoader(dataset, batch_size=None, num_workers=WORKERS)

    def _batched(self, dataset: webdataset.WebDataset) -> webdataset.WebDataset:
        return dataset.map(_key).batched(self.life.rank_batch, collation_fn=list, partial=True)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps("the number of samples that were taken is all that there is"))


def _key(sample: dict[str, str]) -> str:
    return sample["__key__"]


if __name__ == "__main__":
    run(WebDataset, None)
