"""What every adapter is held to: the loader's own batches, states that resume after them, nothing left behind.

    python -m tests.support.adapters jax URL BROKEN_URL

does with one adapter what its users do, prints what came of it as JSON, and then fails with batches in flight.
Each framework gets a process of its own, as torch_xla must not meet TensorFlow; one for all tests, as it takes seconds
to import. `AdapterContract` compares with the bare loader.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import pytest

from loaders import Batch, Loader, Mixture, MixtureSource, RowView, mixture, open_loader
from tests.support import warm
from tests.support.loading import digest, load
from tests.support.training import report_of, start_program

SMALL = {"batch_size": 12, "image_size": 64, "fields": ("class_name", "height"), "views": True}
EVALUATION = {**SMALL, "batch_size": 4}
"""Settings of an evaluation of more than one batch."""
COMPLETE = 4
"""Batches before the one with a damaged image; some adapters ask for two more before they yield one."""
TAKEN = 3
"""Batches before somebody leaves, in the middle of an epoch."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One of ours, as it is used."""

    batches: Callable[[Loader], Iterator[Any]]
    """The rest of an epoch."""
    on_host: Callable[[Any], Batch]
    rewinds: bool = True
    """Left in the middle of an epoch, it sets the loader back to where its user is."""


class AdapterContract:
    """Tests of one adapter; a subclass names it."""

    adapter: str
    environment: Mapping[str, str] = MappingProxyType({})
    """Environment variables of the adapter's process."""

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, dataset):
        return dataset("webdataset")

    @pytest.fixture(scope="class")
    @classmethod
    def epochs(cls, url):
        """Keys and digests of the batches of the adapter's first two epochs, from the bare loader."""
        with open_loader(str(url), **SMALL) as loader:
            batches = (batch for _ in range(3) for batch in loader)
            return [[list(batch.keys), digest(batch)] for batch in islice(batches, cls.steps(loader.order))]

    @staticmethod
    def steps(order):
        """Return the number of batches in the adapter's first two epochs."""
        return order.first_batch(2)

    @pytest.fixture(scope="class")
    @classmethod
    def ended(cls, url, epochs, tmp_path_factory):
        """A program that has used the adapter and then failed."""
        broken = tmp_path_factory.mktemp("broken") / "dataset"
        shutil.copytree(url, broken)
        keys, _ = epochs[COMPLETE]
        _damage(broken, keys[0])
        with start_module("tests.support.adapters", cls.adapter, url, broken, **cls.environment) as program:
            out, err = program.communicate(timeout=800)
        assert program.returncode is not None
        return subprocess.CompletedProcess([], program.returncode, out, err)

    @pytest.fixture(scope="class")
    @classmethod
    def report(cls, ended):
        assert ended.stdout, ended.stderr[-3000:]
        return json.loads(ended.stdout.splitlines()[-1])

    def test_batches_equal_the_loaders_while_all_of_them_are_held(self, report, epochs):
        assert report["epochs"] == epochs

    def test_an_evaluation_has_every_sample_and_starts_again(self, report, url):
        assert report["evaluations"] == 2 * [[keys, seen] for keys, seen in load(url, split="val", **SMALL)]

    def test_the_state_of_an_evaluation_resumes_after_its_batch_once(self, report, url):
        whole = [[keys, seen] for keys, seen in load(url, split="val", **EVALUATION)]
        assert len(whole) > 1
        assert report["resumed_evaluations"] == [whole[1:], whole]
        assert report.get("left_evaluation", whole[:1]) == whole[:1]

    def test_a_state_resumes_after_its_batch_whatever_was_prefetched(self, report, epochs):
        assert report["taken"] == epochs[:TAKEN]
        assert report["resumed"] == epochs[TAKEN : 2 * TAKEN]

    def test_a_loader_left_early_continues_after_the_last_batch_taken(self, report, epochs):
        assert report["left"] == epochs[TAKEN : 2 * TAKEN]

    def test_a_mixture_has_the_loaders_batches_and_names_the_dataset_of_each_row(self, report, url):
        assert report["mixed"] == [[keys, seen] for keys, seen in load(two_splits(url), TAKEN, **SMALL)]

    def test_an_error_is_raised_after_the_correct_batches_before_it(self, report, epochs):
        keys, _ = epochs[COMPLETE]
        assert f"{keys[0]}: its CRC32C differs from the index" in report["error"]
        whole = report["before_error"]
        assert COMPLETE - 2 <= len(whole) <= COMPLETE
        assert whole == epochs[: len(whole)]

    def test_no_thread_or_process_is_left_behind(self, report):
        assert report["threads"] == []
        assert report["processes"] == 0

    def test_a_program_that_fails_with_batches_in_flight_ends(self, ended):
        assert "RuntimeError: the user's own" in ended.stderr
        assert ended.returncode == 1


def run_module(module: str, *arguments: object, **environment: str) -> Any:
    """The JSON on the last line that a test program prints."""
    return report_of(start_module(module, *arguments, **environment))


def start_module(module: str, *arguments: object, **environment: str) -> subprocess.Popen[str] | warm.Process:
    """Start a test program; where its first argument says that it needs torch_xla, that is imported already."""
    needs_torch = arguments[0] in ("xla", "train.pretrain_mae")
    return start_program(module, *map(str, arguments), environment={**os.environ, **environment}, fork=needs_torch)


def _damage(dataset: Path, key: str) -> None:
    """Change a byte of an image."""
    for shard in dataset.glob("train/*.tar"):
        with tarfile.open(shard) as tar:
            offsets = {member.name: member.offset_data for member in tar}
        if f"{key}.jpg" in offsets:
            data = bytearray(shard.read_bytes())
            data[offsets[f"{key}.jpg"] + 100] ^= 0xFF
            shard.write_bytes(data)


def two_splits(url: object) -> Mixture:
    """Return a mixture of both splits of a dataset."""
    return mixture([MixtureSource(url=str(url), weight=3, name="train"), (str(url), 1, "val")])


def exercise(url: str, broken_url: str, adapter: Adapter) -> dict[str, Any]:
    """Everything that `AdapterContract` asks for."""
    batches = adapter.batches

    def seen(found: Iterable[Any]) -> list[Any]:
        return [[batch.keys, digest(batch)] for batch in map(adapter.on_host, found)]

    report: dict[str, Any] = {"before_error": []}
    with open_loader(url, **SMALL) as loader:
        held = [batch for _ in range(2) for batch in batches(loader)]
        report["epochs"] = seen(held)
    with open_loader(url, "val", **SMALL) as loader:
        report["evaluations"] = [each for _ in range(2) for each in seen(batches(loader))]
    with open_loader(url, "val", **EVALUATION) as loader:
        (first,) = islice(batches(loader), 1)
        time.sleep(0.2)
        if adapter.rewinds:
            report["left_evaluation"] = seen(islice(batches(loader), 1))
        loader.load_state_dict(json.loads(json.dumps(adapter.on_host(first).state)))
        report["resumed_evaluations"] = [seen(batches(loader)) for _ in range(2)]
    with open_loader(two_splits(url), **SMALL) as loader:
        report["mixed"] = seen(islice(batches(loader), TAKEN))
    with open_loader(url, **SMALL, processes=1) as loader:
        taken = list(islice(batches(loader), TAKEN))
        time.sleep(0.2)  # whoever runs ahead does
        report["taken"] = seen(taken)
        state = json.loads(json.dumps(adapter.on_host(taken[-1]).state))
        if not adapter.rewinds:
            loader.load_state_dict(state)
        report["left"] = seen(islice(batches(loader), TAKEN))
    with open_loader(url, **SMALL) as loader:
        loader.load_state_dict(state)
        report["resumed"] = seen(islice(batches(loader), TAKEN))
    with open_loader(broken_url, **SMALL) as loader:
        try:
            report["before_error"].extend(seen([batch])[0] for batch in batches(loader))
        except Exception as error:  # noqa: BLE001  whatever the framework makes of it
            report["error"] = str(error)
    del held, taken
    gc.collect()
    return {**report, **_left_behind()}


def fail(url: str, adapter: Adapter) -> NoReturn:
    """Fail while batches are under way, nothing being closed."""
    batches = adapter.batches(open_loader(url, **SMALL))
    next(batches)
    raise RuntimeError("the user's own")


def _left_behind() -> dict[str, Any]:
    """Python's threads and processes; those of a framework's own pools are none of them."""
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    return {
        "threads": [thread.name for thread in others if not isinstance(thread, threading._DummyThread)],
        "processes": len(multiprocessing.active_children()),
    }


def _numpy_batch(batch: Any) -> Batch:
    """Bring a batch of an adapter's arrays or tensors to the host."""
    images, labels, mask = (np.asarray(part) for part in (batch.images, batch.labels, batch.mask))
    return Batch(images, labels, list(batch.keys), mask, batch.fields, batch.state, batch.views)


def _torch() -> Adapter:
    from torch.utils.data import DataLoader

    from loaders.torch import TorchBatches

    return Adapter(lambda loader: iter(DataLoader(TorchBatches(loader), batch_size=None)), _numpy_batch)


def _xla() -> Adapter:
    from loaders.xla import device_batches

    def on_host(batch: Any) -> Batch:
        parts = {name: getattr(batch, name) for name in ("images", "labels", "mask")}
        if {part.device.type for part in parts.values()} != {"xla"}:
            raise ValueError(f"on {[part.device for part in parts.values()]}, expected xla")
        return _numpy_batch(replace(batch, **{name: part.cpu() for name, part in parts.items()}))

    return Adapter(device_batches, on_host)


def _jax() -> Adapter:
    import jax

    from loaders.jax import device_batches

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    return Adapter(lambda loader: device_batches(loader, mesh), _numpy_batch)


def _tf() -> Adapter:
    from loaders.tf import dataset

    def on_host(batch: Any) -> Batch:
        parts = {name: batch[name].numpy() for name in ("images", "labels", "mask", "keys", "state")}
        texts = {name: [text.decode() or None for text in column.numpy()] for name, column in batch["fields"].items()}
        texts["height"] = [text and json.loads(text) for text in texts["height"]]
        keys = [key.decode() for key in parts["keys"]]
        views = [RowView(**json.loads(text)) if text else None for text in batch["views"].numpy()]
        state = json.loads(parts["state"])
        return Batch(parts["images"], parts["labels"], keys, parts["mask"], texts, state, views)

    return Adapter(lambda loader: iter(dataset(loader, epochs=1).prefetch(2)), on_host, rewinds=False)


ADAPTERS = {"torch": _torch, "xla": _xla, "jax": _jax, "tf": _tf}

if __name__ == "__main__":
    name, url, broken_url = sys.argv[1:]
    adapter = ADAPTERS[name]()
    print(json.dumps(exercise(url, broken_url, adapter)), flush=True)
    fail(url, adapter)
