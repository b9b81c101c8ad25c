"""Orders of runs that continue after their dataset has changed, or with another view of it.

    state ─▶ data before each change ─▶ places of their samples in the data after it ─▶ loaders.order.continued

A state lists the data of its run before each change. Only the data since the epoch began are read again: samples of an
earlier revision follow from the lists of removed samples, samples of a view from its files. Anyone may have written a
state: its names and counts are compared with the dataset before they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, TypedDict

from msgspec import Meta

from dataprep.arrays import NDArray, np
from dataprep.dataset.documents import Count, convert
from dataprep.dataset.records import ShardEntry, ViewedSplit
from dataprep.dataset.revisions import Removed, changes_after, moved, steps_back
from dataprep.dataset.views import Kept, find_view, kept_of
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from loaders.dataset import Dataset
from loaders.engine.batch import MAX_CHANGES, Data, EarlierData
from loaders.order import Epochs, Order, continued

_ADVICE = "use a state that a loader returned"
_NEW_RUN = "or load the weights of the model alone, without this state"
_NONE = np.empty(0, np.int64)


class _State(TypedDict):
    """Everything other than settings that the order depends on."""

    position: Count
    sequence: Data
    earlier: Annotated[list[EarlierData], Meta(max_length=MAX_CHANGES)]


class Resumed(NamedTuple):
    """Order with which a run continues."""

    order: Order
    earlier: tuple[EarlierData, ...]
    """Data of the run before each change."""
    message: str
    """Line for the user; empty if the state is of the data that are opened."""


def resumed(dataset: Dataset, order: Order, data: Data, state: Mapping[str, Any]) -> Resumed:
    """Return the order with which a run continues.

    Args:
        dataset: The opened data: the state's own, a later revision of them, or another view.
        order: The order of these data in a new run.
        data: The identity of these data.
        state: State of a loader with the same settings over the same build.

    Raises:
        UsageError: The state is of a later revision, or the dataset does not say what has changed since; the file of an
            earlier view is gone; or the state is damaged.
        FormatError: A file of an earlier view, or a list of removed samples, is damaged.
    """
    where = dataset.data_url
    found = convert({"earlier": [], **state}, _State, where=f"{where}: the state", advice=_ADVICE, error=UsageError)
    position, earlier = found["position"], found["earlier"]
    run = [*earlier, found["sequence"]]
    stops = [*(each["stop"] for each in earlier), position]
    starts = [(0, 0), *((each["epoch"], each["start"]) for each in earlier)]
    for ascending in (stops, [epoch for epoch, _ in starts], [each["dataset"]["revision"] for each in run]):
        if ascending != sorted(ascending):
            raise UsageError(f"{where}: the changes in the state do not follow each other; {_ADVICE}")
    ours, theirs = (each["dataset"]["revision"] for each in (data, run[-1]))
    if theirs > ours:
        raise UsageError(
            f"{where}: the state is of revision {theirs}, this is the older revision {ours}; open the changed "
            "dataset, or copy it here again"
        )
    if run[-1]["dataset"] != data["dataset"]:
        run.append(data)
    epochs = [Epochs(*start, order.passes * each["samples"]) for start, each in zip(starts, run, strict=False)]
    # The last data whose own epochs were reached; earlier data no longer matter.
    first = max(number for number, stop in enumerate(stops) if stop >= epochs[number].start)
    versions, orders = list[_Version](), [order]
    if len(run) > first + 1:
        history = _History(dataset, run[first]["dataset"]["revision"])
        versions = [history.version(each) for each in run[first:]]
        orders = [
            version.order(order, each) for version, each in zip(versions[:-1], run[first:], strict=False)
        ] + orders
    now = replace(orders[0], earlier=tuple(epochs[:first]), first_epoch=epochs[first].first, start=epochs[first].start)
    message = ""
    for number, (here, there) in enumerate(pairwise(versions), first):
        places = _Places(here, there, history.removed(here, there))
        now = continued(now, stops[number], orders[number - first + 1], places.of)
        if number < len(earlier):
            if starts[number + 1] != (now.first_epoch, now.start):
                raise UsageError(f"{where}: the state contradicts the dataset's list of its changes; {_ADVICE}")
        else:
            last = run[number]
            earlier = [*earlier, EarlierData(**last, stop=position, start=now.start, epoch=now.first_epoch)]
            message = (
                f"{where}: continued from {here} to {there}: {last['samples'] - places.found:,} removed, "
                f"{data['samples'] - places.found:,} added from epoch {now.first_epoch} on"
            )
    return Resumed(now, tuple(earlier), message)


class _Version:
    """A revision of a split, or a view of one."""

    def __init__(self, data: Data, stored: tuple[int, ...], kept: Kept | None) -> None:
        self.revision, self._view = data["dataset"]["revision"], data["dataset"].get("view")
        self._stored, self._kept = stored, kept

    def order(self, like: Order, data: Data) -> Order:
        """Return its order, with the settings of another one."""
        counts = self._stored if self._kept is None else tuple(self._kept.split.kept)
        if sum(counts) != data["samples"]:
            raise UsageError(f"{self}: {sum(counts):,} samples, the state has {data['samples']:,}; {_ADVICE}")
        return replace(like, shard_samples=counts, samples_per_block=data["samples_per_block"])

    def stored(self, shard: int) -> NDArray[np.int64]:
        """Return the numbers of a shard's samples among its stored ones, ascending."""
        return np.arange(self._stored[shard]) if self._kept is None else self._kept.numbers(shard)

    def places(self, shard: int, stored: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in the view of stored samples of a shard, -1 for samples outside it."""
        if self._kept is None:
            return stored
        kept = self._kept.numbers(shard)
        at = np.searchsorted(kept, stored)
        return np.where(np.append(kept, -2)[at] == stored, at, -1)

    def __str__(self) -> str:
        of = "" if self._view is None else f"view {self._view['name']} of "
        return f"{of}revision {self.revision}"


class _History:
    """Revisions of an opened split, from the oldest that a run needs, and their views."""

    def __init__(self, dataset: Dataset, oldest: int) -> None:
        self._dataset, manifest, where = dataset, dataset.manifest, dataset.data_url
        storage = open_storage(dataset.url)
        self._views = storage if dataset.view is None else open_storage(dataset.view.url)
        split = dataset.split
        self._stored = tuple(shard["samples"] for shard in split.shards)
        if isinstance(split, ViewedSplit):
            self._stored = split.kept.stored
            shards = zip(split.shards, self._stored, strict=True)
            split = replace(split, shards=tuple(ShardEntry(**shard | {"samples": count}) for shard, count in shards))
        changes = changes_after(manifest, oldest, split.name)
        if changes is None:
            raise UsageError(
                f"{where}: the dataset does not record its changes between revision {oldest}, which the state is of, "
                f"and {manifest.revision}; open a copy of that revision, {_NEW_RUN}"
            )
        self._steps = list(steps_back(storage, split, changes))

    def version(self, data: Data) -> _Version:
        """Return the version that a state names."""
        dataset, revision, view = self._dataset, data["dataset"]["revision"], data["dataset"].get("view")
        stored = self._stored
        for change, _, before in self._steps:
            stored = before if change.revision > revision else stored
        if view is None:
            return _Version(data, stored, None)
        found = find_view(self._views, view["name"], view["sha256"])
        if found is None or found[0].revision != revision:
            raise UsageError(
                f"{self._views.url}: the state is of the view {view['name']} as it was for revision {revision}, whose "
                f"file is gone; restore the folder of views, {_NEW_RUN}"
            )
        return _Version(data, stored, kept_of(self._views, found[0], dataset.manifest, dataset.split.name, stored))

    def removed(self, here: _Version, there: _Version) -> list[Removed]:
        """Return the samples that each change between two versions removed, the earliest first."""
        between = range(here.revision + 1, there.revision + 1)
        return [removed for change, removed, _ in reversed(self._steps) if change.revision in between]


class _Places:
    """Places of a version's samples in a later one."""

    def __init__(self, here: _Version, there: _Version, removed: list[Removed]) -> None:
        self._here, self._there, self._removed = here, there, removed
        self.found = 0
        """Number of samples with a place, in the requested shards."""

    def of(self, shard: int) -> NDArray[np.int64]:
        """Return the place of each sample of a shard, -1 for samples without one."""
        numbers = self._here.stored(shard)
        for removed in self._removed:
            numbers = moved(removed.get(shard, _NONE), numbers)
        places = self._there.places(shard, numbers)
        self.found += int((places >= 0).sum())
        return places
