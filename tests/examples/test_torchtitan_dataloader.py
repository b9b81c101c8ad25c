"""torchtitan's own code reads our datasets: its loader over ours, and our example of a loader of its kind.

States pass through torch's distributed checkpoints, as torchtitan writes and reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loaders import open_loader
from tests.support.finished import finished_dataset
from tests.support.markdown import ROOT
from tests.support.on_use import on_use

torch = on_use("torch")
OrderSampler = on_use("loaders.torch:OrderSampler")
TorchBatches = on_use("loaders.torch:TorchBatches")
TorchSamples = on_use("loaders.torch:TorchSamples")

dcp = on_use("torch.distributed.checkpoint")
BATCH, SIZE, STOP, MORE = 24, 32, 3, 4
"""Images a step, their size, steps before a checkpoint, and after it; an epoch has 4 or 5 steps."""

pytestmark = pytest.mark.filterwarnings("ignore:.*single process:UserWarning", "ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def dataloader() -> Iterator[ModuleType]:
    """torchtitan's module of data loaders; our example can be imported as well."""
    folders = [str(ROOT / ".bench-venv/torchtitan"), str(ROOT / "examples")]
    sys.path += folders
    from torchtitan.components import dataloader

    yield dataloader
    for folder in folders:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def url(originals, tmp_path_factory) -> str:
    return str(finished_dataset("imagenet-webdataset", originals, tmp_path_factory))


@pytest.fixture(scope="module")
def expected(url) -> list[torch.Tensor]:
    """The labels and pixels of every step of two epochs, sorted by what they are."""
    with open_loader(url, batch_size=BATCH, image_size=SIZE) as loader:
        return [summary([batch.images]) for _ in range(2) for batch in TorchBatches(loader)]


def summary(images: list[torch.Tensor]) -> torch.Tensor:
    """The images of a step of all ranks, in an order that does not depend on the ranks."""
    return torch.cat(images).flatten(1).to(torch.int64).sum(1).sort().values


def steps(ranks: list[Iterator[Any]], count: int) -> list[torch.Tensor]:
    return [summary([images_of(next(rank)) for rank in ranks]) for _ in range(count)]


def images_of(batch: Any) -> torch.Tensor:
    if isinstance(batch, tuple):
        return batch[0]["input"]
    return batch["image"] if isinstance(batch, dict) else batch.images


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def over_samples(stack: ExitStack, dataloader: ModuleType, url: str, rank: int, world_size: int) -> Any:
    """torchtitan's loader, whose worker processes decode our samples in the order of our sampler."""
    samples = TorchSamples.open(url, image_size=SIZE, threads=1)
    sampler = OrderSampler(samples, batch_size=BATCH, rank=rank, world_size=world_size)
    return dataloader.ParallelAwareDataloader(
        samples, rank, world_size, batch_sampler=sampler, num_workers=1, prefetch_factor=2
    )


def over_batches(stack: ExitStack, dataloader: ModuleType, url: str, rank: int, world_size: int) -> Any:
    """torchtitan's loader over the batches of ours."""
    loader = stack.enter_context(open_loader(url, batch_size=BATCH, image_size=SIZE, rank=rank, world_size=world_size))
    return dataloader.ParallelAwareDataloader(TorchBatches(loader), rank, world_size, batch_size=None)


def example(stack: ExitStack, dataloader: ModuleType, url: str, rank: int, world_size: int) -> Any:
    """Our example, made as torchtitan's trainer makes its loader."""
    from torchtitan_dataloader import ImageDataLoader

    made = ImageDataLoader.Config(dataset_path=url, image_size=SIZE).build(
        dp_rank=rank, dp_world_size=world_size, local_batch_size=BATCH // world_size,
        tokenizer=None, seq_len=2048, snapshot_every_n_steps=1,
    )  # fmt: skip
    stack.enter_context(made.loader)
    return made


def epochs(made: Any) -> Iterator[Any]:
    """The batches of a loader, epoch after epoch."""
    while True:
        yield from made


def save(path: Path, made: Any) -> None:
    dcp.save({"dataloader": made}, checkpoint_id=path, no_dist=True)


def load(path: Path, made: Any) -> None:
    dcp.load({"dataloader": made}, checkpoint_id=path, no_dist=True)


@pytest.mark.parametrize("kind", [over_samples, over_batches, example])
def test_a_checkpoint_of_torchtitan_resumes_with_the_batches_that_come_next(dataloader, url, expected, tmp_path, kind):
    with ExitStack() as stack:
        before = [kind(stack, dataloader, url, rank, 2) for rank in range(2)]
        assert isinstance(before[0], dataloader.BaseDataLoader)
        assert same(steps([epochs(made) for made in before], STOP), expected[:STOP])
        for rank, made in enumerate(before):
            save(tmp_path / str(rank), made)
        after = [kind(stack, dataloader, url, rank, 2) for rank in range(2)]
        for rank, made in enumerate(after):
            load(tmp_path / str(rank), made)
        assert same(steps([epochs(made) for made in after], MORE), expected[STOP : STOP + MORE])


def test_the_example_goes_on_with_another_number_of_ranks(dataloader, url, expected, tmp_path):
    with ExitStack() as stack:
        before = [example(stack, dataloader, url, rank, 3) for rank in range(3)]
        steps([iter(made) for made in before], STOP)
        save(tmp_path / "checkpoint", before[2])
        after = [example(stack, dataloader, url, rank, 2) for rank in range(2)]
        for made in after:
            load(tmp_path / "checkpoint", made)
        assert same(steps([iter(made) for made in after], MORE), expected[STOP : STOP + MORE])


def test_torchtitans_own_loader_refuses_another_number_of_ranks(dataloader, url):
    with ExitStack() as stack:
        one, two = (over_batches(stack, dataloader, url, 0, world_size) for world_size in (1, 2))
        list(islice(one, 1))
        with pytest.raises(AssertionError, match="dataloader resharding is not supported yet"):
            two.load_state_dict(one.state_dict())
