"""The loader over several datasets at once: `loaders.mixture` describes them, `open_loader` opens them.

A plan divides the positions of the mixture's order among ranks and batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from os import PathLike
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict, cast

from msgspec import Meta

from dataprep.arrays import NDArray, np
from dataprep.dataset.documents import MAX_COUNT, Count, convert
from dataprep.dataset.manifest import no_dataset, read_manifest
from dataprep.errors import UsageError
from dataprep.messages import quoted, shortened
from dataprep.storage import open_storage
from loaders.config import LoaderConfig
from loaders.dataset import DATASET_FIELD, PlainData, open_dataset
from loaders.engine.batch import (
    BatchPlan,
    Data,
    DatasetIdentity,
    EarlierData,
    LoaderState,
    MixtureChange,
    ViewIdentity,
)
from loaders.engine.resumption import resumed
from loaders.fetch.index import DEADLINE_S, with_deadline
from loaders.loader import OF_DATA, Loader, PackLoader, ViewLoader, identity_of, order_of, with_short_plans
from loaders.mixtures.dataset import (
    MAX_DATASETS,
    Labels,
    Listed,
    MixedDataset,
    MixedIndex,
    MixtureSpec,
    Part,
    joined_dataset,
    listed_sources,
    read_spec,
)
from loaders.mixtures.order import MAX_TOTAL, AtEnd, Change, Member, MixedOrder, shared_out, whole_weights
from loaders.order import HEDGED_SHARE, Lookup, Order, Pick, bytes_held


class Share(NamedTuple):
    """The samples of one batch, and a mask of one rank's; every array has shape (samples,)."""

    positions: NDArray[np.int64]
    """Position in the mixture, ascending."""
    members: NDArray[np.int64]
    """Number of the dataset."""
    indexes: NDArray[np.int64]
    """Position in the dataset's own order."""
    home: NDArray[np.int64]
    """Rank that the sample belongs to."""
    is_mine: NDArray[np.bool_]
    """Whether this rank takes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _MixedBatches(BatchPlan):
    """Base of the plans of a mixture's training."""

    order: MixedOrder

    @property
    def batches_left(self) -> int | None:
        """Number of batches from the first one to the end, or to those of another size; None if neither is ahead."""
        return self._left(self.order.num_batches)

    def _numbers(self) -> Iterable[int]:
        """Return the numbers of the batches that are left."""
        left = self.batches_left
        return count(self.first_batch) if left is None else range(self.first_batch, self.first_batch + left)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedPackPlan(_MixedBatches):
    """The batches of packs of one rank of a training; picklable.

    A row holds the same positions as with a single dataset. So it is the same for every number of ranks, and a process
    makes complete rows. The samples of a dataset's block then belong to many rows, and each is read by itself.
    """

    def __iter__(self) -> Iterator[list[tuple[int, Pick]]]:
        """Yield for each batch the places of this process's images with their samples."""
        lookups = self.order.lookups()
        for number in self._numbers():
            first = self.order.batch_start(number)
            positions, members, indexes = self.order.origins(first, first + self._size)
            own, rank = np.divmod(positions - first, self.world_size)
            batch = []
            for at in np.flatnonzero((rank == self.rank) & (own % self.parts == self.part)).tolist():
                pick = lookups[members[at]].at(int(indexes[at]))
                batch.append((self._place(int(own[at])), pick._replace(position=int(positions[at]))))
            yield batch


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedPlan(_MixedBatches):
    """The batches of one rank of a training from `first_batch` on; picklable.

    Rank r is the home of each dataset's samples with index j % world_size == r. If a batch has more of them than the
    rank has rows, the last ones become rows of other ranks. Of `parts` processes, number (j // world_size) % parts
    makes the row, so each piece of a shard is read by one process.
    """

    def __iter__(self) -> Iterator[list[tuple[int, Pick]]]:
        """Yield for each batch its rows with their samples; rows without a sample are left out."""
        sources = [_Source(self, number) for number in range(len(self.order.members))]
        released: list[Pick] = []
        for number in self._numbers():
            yield self._batch(number, sources, released)

    def share(self, number: int) -> Share:
        """Return the rank's samples of one batch, over all of its processes."""
        first, size, world_size = self.order.batch_start(number), self._size, self.world_size
        positions, members, indexes = self.order.origins(first, first + size)
        home = indexes % world_size
        return Share(positions, members, indexes, home, shared_out(home, world_size, size // world_size) == self.rank)

    def _batch(self, number: int, sources: list[_Source], released: list[Pick]) -> list[tuple[int, Pick]]:
        """Return the rows of one batch; all batches before it were taken from the sources. `released` holds samples at
        home here that other ranks take, until a pick of this rank lists them."""
        positions, members, indexes, home, is_mine = self.share(number)
        rows = np.cumsum(is_mine) - 1
        wanted = (is_mine | (home == self.rank)) & (indexes // self.world_size % self.parts == self.part)
        batch: list[tuple[int, Pick]] = []
        for place in np.flatnonzero(wanted).tolist():
            source, index = sources[members[place]], int(indexes[place])
            pick = source.next_at_home(index) if home[place] == self.rank else source.elsewhere(index)
            if not is_mine[place]:
                released.append(pick)
                continue
            pick = Pick(int(positions[place]), pick.piece, pick.sample, pick.of_piece, tuple(released))
            released.clear()
            batch.append((int(rows[place]), pick))
        return batch


class _Source:
    """The samples of one dataset for one process of a rank."""

    def __init__(self, plan: MixedPlan, number: int) -> None:
        order = plan.order.members[number].order
        self._order = plan.order if order is None else order  # no position is of a dataset that was taken out
        self._step = plan.world_size * plan.parts
        self._at_home: Iterator[Pick] | None = None
        self._lookup: Lookup | None = None

    def next_at_home(self, index: int) -> Pick:
        """Return the next sample that is at home in this process; its index only matters for the first one."""
        if self._at_home is None:
            self._at_home = self._order.every(self._step, index)
        return next(self._at_home)

    def elsewhere(self, index: int) -> Pick:
        """Return a sample that is at home in another rank, as a separate piece."""
        if self._lookup is None:
            self._lookup = Lookup(self._order)
        return self._lookup.at(index)


MIXTURE_VERSION = 1
"""Version, in states, of the function from positions to datasets; other versions are refused."""
MAX_CHANGES = 64
"""Maximum number of changes of a run's weights, which are all in its state."""
MIN_REQUESTS_SHARE = 1 / 16
"""Minimum share of the requests in flight, so that a dataset of small weight does not wait for each image."""


def mixture(
    source: str | PathLike[str] | Iterable[Listed],
    *,
    at_end: AtEnd = "repeat",
    labels: Labels = "joined",
    epoch_samples: int | None = None,
) -> Mixture:
    """Describe several datasets, for `open_loader` to draw every batch from all of them.

    Args:
        source: URL of a file such as `mix.json`, which also has the other arguments; or a list of (url, weight),
            (url, weight, split) or `MixtureSource`.
        at_end: Action at the end of a dataset that is given as a tuple: `repeat` begins its next pass, `drop`
            gives its weight to the others, `stop` ends the mixture.
        labels: `joined`: classes of the same name are one class of the mixture; `own`: labels stay as they are.
        epoch_samples: Number of images in an epoch; by default an epoch of every dataset together.

    Raises:
        UsageError: The file or the list does not describe a mixture.
    """
    if not isinstance(source, str | PathLike):
        if not isinstance(source, Iterable):
            raise UsageError(f"a mixture must be the URL of a file or a list of datasets, got {quoted(source)}")
        sources = listed_sources(source, at_end)
        return Mixture(MixtureSpec(where="", sources=sources, labels=labels, epoch_samples=epoch_samples))
    if (at_end, labels, epoch_samples) != ("repeat", "joined", None):
        raise UsageError(f"{source}: at_end, labels and epoch_samples must be set in the file, not here")
    return Mixture(read_spec(str(source)))


@dataclass(frozen=True, slots=True)
class Mixture:
    """Several datasets with their weights, for `open_loader`; made by `loaders.mixture`."""

    spec: MixtureSpec

    def open_loader(self, split: str, config: LoaderConfig) -> Loader:
        """Open a loader with settings that were checked already; see `loaders.open_loader`."""
        kind = _MixedViewLoader if config.view_groups else MixtureLoader
        kind = _MixedPackLoader if config.packs is not None else kind
        dataset = self.open_dataset(split, config.region_policy, deadline_s=config.deadline_s, fields=config.fields)
        return kind(dataset, self.spec, config)

    def open_dataset(
        self,
        split: str,
        region_policy: str = "refuse",
        *,
        deadline_s: float = DEADLINE_S,
        fields: tuple[str, ...] = (),
    ) -> MixedDataset:
        """Read the manifests of all datasets; arguments as for `loaders.dataset.open_dataset` and `PlainData`. Raises
        UsageError if a dataset or split does not exist, or two datasets have the same images."""
        parts, share, plain = [], 1 / len(self.spec.sources), PlainData(fields=fields)
        for source in self.spec.sources:
            split_name = source.split or split
            dataset = open_dataset(source.url, split_name, region_policy, deadline_s=deadline_s, plain=plain)
            parts.append(Part(source.name, dataset, source.at_end, source.epochs, share, share))
        _refuse_same(self.spec.label, parts)
        names = shortened(", ".join(part.name for part in parts), 200)
        return joined_dataset(self.spec.where or f"mixture of {names}", tuple(parts), self.spec.labels)

    def split_names(self) -> tuple[str, ...]:
        """Return the splits that all datasets have; only `train` if the mixture itself names a dataset's split. Raises
        UsageError if a dataset does not exist."""
        if any(source.split is not None for source in self.spec.sources):
            return ("train",)
        found = [_split_names(source.url) for source in self.spec.sources]
        return tuple(name for name in found[0] if all(name in names for names in found))


class MixtureLoader(Loader):
    """Iterates over batches drawn from several datasets; an evaluation takes one dataset after the other, once each."""

    dataset: MixedDataset
    index: MixedIndex
    _whole_batches = False

    def __init__(self, dataset: MixedDataset, spec: MixtureSpec, config: LoaderConfig) -> None:
        self._spec = spec
        fields = tuple(dict.fromkeys((*config.fields, DATASET_FIELD)))
        super().__init__(dataset, replace(config, fields=fields))

    def end_with_a_whole_batch(self) -> None:
        """Leave out the last batch if the mixture ends within it, because training cannot use rows without a sample."""
        self._whole_batches = True
        if isinstance(self.order, MixedOrder):
            self.order = replace(self.order, whole_batches=True)

    def positions(self, batch: int) -> Sequence[int]:
        """Return the position of each row of this rank in a batch; rows without a sample have the batch's last one."""
        plan = self._plan()
        if not isinstance(plan, MixedPlan):
            return super().positions(batch)
        share = replace(plan, first_batch=batch).share(batch)
        found: list[int] = share.positions[share.is_mine].tolist()
        start, stop = self.order.batch_start(batch), self.order.batch_start(batch + 1)
        return found + [stop - 1] * ((stop - start) // self.config.world_size - len(found))

    def state_dict(self) -> LoaderState:
        """Return the state after the last batch that was taken, with the weights since the first one."""
        state = super().state_dict()
        datasets = cast(Mapping[str, _Dataset], state["sequence"]["datasets"])
        state["sequence"] = {**state["sequence"], "datasets": [_packed(*each) for each in datasets.items()]}
        if isinstance(self.order, MixedOrder):
            state["mixture"] = [[each.start, each.epoch_samples, *each.weights] for each in self.order.changes]
            state["counts"] = list(self.order.changes[-1].counts)
        return state

    def _expanded(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state with its datasets by name, and as `_members` describes them."""
        state = super()._expanded(state)
        sequence = state.get("sequence") if isinstance(state, Mapping) else None
        listed = sequence.get("datasets") if isinstance(sequence, Mapping) else None
        if isinstance(listed, Mapping):  # of 0.2.0 and before
            datasets = {
                name: with_short_plans(each) if isinstance(each, Mapping) else each for name, each in listed.items()
            }
        elif isinstance(listed, list):
            stored: list[_Packed] = _converted(listed, list[_Packed], "the state's datasets")
            names = {part.name: part.dataset.manifest.name for part in self.dataset.parts}
            datasets = {
                each["name"]: _unpacked(each, place, names.get(each["name"], "")) for place, each in enumerate(stored)
            }
        else:
            return state
        return {**state, "sequence": {**state["sequence"], "datasets": datasets}}

    def order_from(self, epoch: int) -> Order:
        """Return the order that has an epoch's first batch: a new run's if datasets were removed since."""
        order = self.order
        if isinstance(order, MixedOrder) and order.first_position(epoch) < order.changes[-1].start:
            self.order = self._order() if any(each.order is None for each in order.members) else order
        return super().order_from(epoch)

    def _order_after(self, state: Mapping[str, Any]) -> tuple[Order, tuple[EarlierData, ...]]:
        """Return the order of a run that continues with this loader's datasets and weights; datasets of the state's
        run, even those no longer in the mixture, keep their place."""
        now = self._order()
        if not isinstance(now, MixedOrder):
            return super()._order_after(state)
        theirs, position, own = _datasets_of(state), state["position"], {each.name: each for each in now.members}
        members = tuple(own.get(name) or _taken_out(name, each) for name, each in theirs.items())
        members += tuple(member for name, member in own.items() if name not in theirs)
        if len(members) > MAX_DATASETS:
            raise UsageError(
                f"{self.dataset.data_url}: {len(members)} datasets in a run, expected up to {MAX_DATASETS}"
            )
        then, stored = replace(now, members=members, changes=()), _changes(state, len(members))
        for change, counts in stored:
            due = then.counts_at(change.start) if then.changes else change.counts
            if counts not in (None, due):
                raise UsageError(
                    f"the state's mixture: the counts {counts} at position {change.start:,} contradict the "
                    "weights before it; use a state that a loader returned"
                )
            then = replace(then, changes=(*then.changes, change._replace(counts=due)))
        weights = dict(zip(own, now.changes[0].weights, strict=True))
        changes = then.changed(position, tuple(weights.get(each.name, 0) for each in members), now.epoch_samples)
        if len(changes) > MAX_CHANGES:
            raise UsageError(
                f"{self.dataset.data_url}: the weights would change for the {len(changes) - 1}th time; a state holds "
                f"{MAX_CHANGES - 1} changes, resume with the weights that the state has"
            )
        counts = then.counts_at(position)
        members = tuple(
            self._member_after(member, theirs[member.name], count)
            if member.order is not None and member.name in theirs
            else member
            for member, count in zip(members, counts, strict=True)
        )
        return replace(then, members=members, changes=changes), ()

    def _member_after(self, member: Member, theirs: _Dataset, count: int) -> Member:
        """Return a dataset that continues at an index, after a change of its revision or view if there was one."""
        ours = member.document
        if ours["dataset"] == theirs["dataset"] and "earlier" not in theirs:
            return member
        number = [part.name for part in self.dataset.parts].index(member.name)
        part, first = self.dataset.parts[number], self.dataset.first_shards[number]
        found = resumed(
            part.dataset,
            order_of(part.dataset, self.index.parts[number], self.config),
            {name: ours[name] for name in OF_DATA},  # type: ignore[arg-type]
            {"position": count, "sequence": theirs, "earlier": theirs.get("earlier", [])},
        )
        if found.message and self.config.rank == 0:
            print(found.message, file=sys.stderr)
        document = {**ours, "earlier": list(found.earlier)} if found.earlier else ours
        return member._replace(order=_behind(found.order, first), document=document)

    def _compared(self, state: Mapping[str, Any]) -> tuple[dict[str, object], dict[str, object]]:
        """Return our sequence and a state's, without parts that may differ: datasets of only one, and their places."""
        ours, theirs = super()._compared(state)
        if not isinstance(self.order, MixedOrder):
            return ours, theirs
        before, now = _datasets_of(state), cast(Mapping[str, Mapping[str, object]], ours["datasets"])
        both = [part.name for part in self.dataset.parts if part.name in before]
        may_differ = {name: {"place", "earlier"} for name in both}
        for name in both:
            if before[name]["dataset"] != now[name]["dataset"] and before[name]["at_end"] == "repeat":
                may_differ[name] |= OF_DATA
        for sequence, parts in ((ours, now), (theirs, before)):
            del sequence["epoch_samples"]
            sequence["datasets"] = {
                name: {key: value for key, value in parts[name].items() if key not in may_differ[name]} for name in both
            }
        return ours, theirs

    def _order(self) -> Order:
        """Return the order of the mixture, or for an evaluation the order of all samples."""
        config, members = self.config, self._members()
        settings = {
            "shard_samples": tuple(shard["samples"] for shard in self.dataset.split.shards),
            "seed": config.seed,
            "global_batch": config.batch_size,
            "samples_per_block": min(member.document["samples_per_block"] for member in members),
            "num_streams": config.num_streams,
            "window": config.window,
        }
        if not config.shuffle:
            return Order(**settings)
        epoch_samples = self._spec.epoch_samples or sum(each.order.epoch_samples for each in members if each.order)
        return MixedOrder(
            **settings,
            members=members,
            changes=(Change(0, self._spec.weights, (0,) * len(members), epoch_samples),),
            whole_batches=self._whole_batches,
        )

    def _members(self) -> tuple[Member, ...]:
        """Return the datasets, each at its first sample."""
        found = []
        for part, index, first in zip(self.dataset.parts, self.index.parts, self.dataset.first_shards, strict=True):
            order = order_of(part.dataset, index, self.config)
            document = {
                "dataset": identity_of(part.dataset),
                "split": part.dataset.split.name,
                "samples": order.num_samples,
                "samples_per_block": order.samples_per_block,
                "passes": order.passes,
                "at_end": part.at_end,
                "epochs": part.epochs,
            }
            stop = None if part.at_end == "repeat" else part.epochs * order.epoch_samples
            found.append(Member(_behind(order, first), part.at_end, stop, part.name, document))
        return tuple(found)

    def _check_budget(self) -> None:
        """Divide the memory for encoded images among datasets in buckets: what each needs, and the rest by weight."""
        if not isinstance(self.order, MixedOrder):
            return
        sharers, weights = max(1, self.config.processes), self._spec.weights
        readers, memory = self.config.world_size * sharers, self.config.prefetch_bytes / sharers
        parts, held = [], []
        for part, member, index, weight in zip(
            self.dataset.parts, self.order.members, self.index.parts, weights, strict=True
        ):
            dataset, needed = part.dataset, 0.0
            if member.order is not None and dataset.is_local and dataset.columns:
                dataset = dataset.reading_columns(member.order, readers, 0, memory / len(weights))
            elif member.order is not None and weight and not dataset.is_local:
                sample_bytes = index.mean_image_bytes() + sum(map(dataset.column_bytes, dataset.columns))
                needed = bytes_held(member.order, readers, sample_bytes)
            parts.append(replace(part, dataset=dataset))
            held.append(needed)
        if not self.dataset.is_local:
            budget, most = self.config.prefetch_bytes // sharers * (1 - HEDGED_SHARE), (1 - HEDGED_SHARE) / sharers
            if sum(held) > budget:
                shares = "; ".join(
                    f"{part.name} {each / most:,.0f}" for part, each in zip(parts, held, strict=True) if each
                )
                raise UsageError(
                    f"prefetch_bytes {self.config.prefetch_bytes:,} must be {sum(held) / most:,.0f} or more for all "
                    f"datasets of the mixture ({shares}); raise it, lower block_bytes, num_streams or window, or use "
                    "more ranks"
                )
            spare, total = 1 - sum(held) / budget, sum(weights)
            parts = [
                replace(
                    part,
                    memory_share=each / budget + spare * weight / total,
                    requests_share=max(MIN_REQUESTS_SHARE, weight / total),
                )
                for part, each, weight in zip(parts, held, weights, strict=True)
            ]
        self.dataset = replace(self.dataset, parts=tuple(parts))

    def _plan(self, kind: type[BatchPlan] = BatchPlan) -> BatchPlan:
        if isinstance(self.order, MixedOrder):
            kind = MixedPlan if self.config.packs is None else MixedPackPlan
        return super()._plan(kind)

    @cached_property
    def _sequence(self) -> dict[str, object]:
        order = self.order
        members = order.members if isinstance(order, MixedOrder) else self._members()
        return {
            "mixture_version": MIXTURE_VERSION,
            "datasets": {each.name: {**each.document, "place": place} for place, each in enumerate(members)},
            "labels": self._spec.labels,
            "epoch_samples": order.epoch_samples,
            **self._decoding,
        }


class _MixedPackLoader(MixtureLoader, PackLoader):
    """A mixture's loader whose batches are packs."""


class _MixedViewLoader(MixtureLoader, ViewLoader):
    """A mixture's loader whose batches have several views of each image."""


class _Dataset(Data):
    """A dataset as a state has it."""

    split: str
    passes: Annotated[int, Meta(ge=1)]
    at_end: AtEnd
    epochs: Annotated[int, Meta(ge=1)]
    place: Count
    earlier: NotRequired[list[EarlierData]]


_DEFAULTS: Mapping[str, object] = {
    "split": "train",
    "samples_per_block": 1,
    "passes": 1,
    "at_end": "repeat",
    "epochs": 1,
}
"""Parts of a dataset that a state does not have if they have these values."""
_More = Annotated[int, Meta(ge=1)]


class _Packed(TypedDict):
    """A dataset as a state stores it; the place in the list is its place among the run's datasets."""

    name: str
    plan: str
    revision: Count
    samples: _More
    view: NotRequired[ViewIdentity]
    split: NotRequired[str]
    samples_per_block: NotRequired[_More]
    passes: NotRequired[_More]
    at_end: NotRequired[AtEnd]
    epochs: NotRequired[_More]
    earlier: NotRequired[list[tuple[Count, _More, _More, Count, Count, Count, ViewIdentity | None]]]
    """Revision, samples, samples_per_block, stop, epoch, start and view of what was loaded before."""


def _packed(name: str, document: _Dataset) -> _Packed:
    """Return a dataset as a state stores it, in a third of the bytes."""
    identity = document["dataset"]
    found: Any = {"name": name, "plan": identity["plan"], "revision": identity["revision"]}
    found |= {"samples": document["samples"]}
    found |= {key: value for key, value in document.items() if key in _DEFAULTS and value != _DEFAULTS[key]}
    if "view" in identity:
        found["view"] = identity["view"]
    if "earlier" in document:
        names = ("samples", "samples_per_block", "stop", "epoch", "start")
        found["earlier"] = [
            [each["dataset"]["revision"], *(each[key] for key in names), each["dataset"].get("view")]  # type: ignore[literal-required]
            for each in document["earlier"]
        ]
    packed: _Packed = found
    return packed


def _unpacked(stored: _Packed, place: int, name: str) -> _Dataset:
    """Return a dataset as `_members` describes it, with its place among the run's and the name in its manifest."""

    def identity(revision: int, view: ViewIdentity | None) -> DatasetIdentity:
        found: DatasetIdentity = {"name": name, "plan": stored["plan"], "revision": revision}
        return found if view is None else {**found, "view": view}

    found: Any = {**_DEFAULTS, **{key: value for key, value in stored.items() if key in {"samples", *_DEFAULTS}}}
    found |= {"dataset": identity(stored["revision"], stored.get("view")), "place": place}
    if "earlier" in stored:
        found["earlier"] = [
            EarlierData(
                dataset=identity(revision, view),
                samples=samples,
                samples_per_block=at_once,
                stop=stop,
                epoch=epoch,
                start=start,
            )
            for revision, samples, at_once, stop, epoch, start, view in stored["earlier"]
        ]
    unpacked: _Dataset = found
    return unpacked


def _converted(value: object, kind: Any, where: str) -> Any:
    """Return a part of a state in the form of a type. Raises UsageError if it is malformed."""
    return convert(value, kind, where=where, advice="use a state that a loader returned", error=UsageError)


class _Sequence(TypedDict):
    datasets: dict[str, _Dataset]
    epoch_samples: Annotated[int, Meta(ge=1, lt=MAX_COUNT)]


def _datasets_of(state: Mapping[str, Any]) -> dict[str, _Dataset]:
    """Return the datasets in a state by name, in the order of their places. Raises UsageError if they are malformed."""
    found: dict[str, _Dataset] = _converted(state["sequence"], _Sequence, "the state")["datasets"]
    places = sorted(each["place"] for each in found.values())
    if places != list(range(len(found))):
        raise UsageError(f"the state's datasets have the places {quoted(places)}; use a state that a loader returned")
    return dict(sorted(found.items(), key=lambda each: each[1]["place"]))


def _changes(state: Mapping[str, Any], num_datasets: int) -> list[tuple[Change, tuple[int, ...] | None]]:
    """Return the changes of weights in a state, for all datasets of a run, without counts; and the counts of those that
    the state has. Raises UsageError if the changes are malformed or not in order."""
    row = Annotated[list[Count], Meta(min_length=3)]
    kind = Annotated[list[row | MixtureChange], Meta(min_length=1, max_length=MAX_CHANGES)]
    found: list[list[int] | MixtureChange] = _converted(state.get("mixture"), kind, "the state's mixture")
    num_known, before, rest = len(state["sequence"]["datasets"]), -1, (0,) * num_datasets
    changes = list[tuple[Change, tuple[int, ...] | None]]()
    for number, change in enumerate(found):
        counts: list[int] | None
        if isinstance(change, list):
            start, epoch_samples, *weights = change
            counts = state.get("counts", []) if number == len(found) - 1 else None
        else:  # of 0.2.0 and before
            start, weights, counts = change["start"], change["weights"], change["counts"]
            epoch_samples = change.get("epoch_samples", state["sequence"]["epoch_samples"])
        fits = len(weights) <= num_known and 0 < sum(weights) <= MAX_TOTAL and epoch_samples > 0
        if counts is not None:
            fits = fits and len(counts) == len(weights) and sum(counts) <= start
        if not fits or not before < start <= state["position"] or (before < 0 < start):
            raise UsageError(
                f"the state's mixture: {quoted(change)} is not a change of {num_known} datasets after position "
                f"{before:,}; use a state that a loader returned"
            )
        before = start
        known = None if counts is None else (*counts, *rest)[:num_datasets]
        changes.append((Change(start, (whole_weights(weights) + rest)[:num_datasets], rest, epoch_samples), known))
    return changes


def _taken_out(name: str, document: _Dataset) -> Member:
    """Return a dataset of a state that is no longer in the mixture."""
    samples = document["passes"] * document["samples"]
    stop = None if document["at_end"] == "repeat" else document["epochs"] * samples
    own = {key: value for key, value in document.items() if key != "place"}
    return Member(None, document["at_end"], stop, name, own)


def _behind(order: Order, shards: int) -> Order:
    """Return the order of a dataset whose shards follow a number of others."""
    left = (lap._replace(stop_shard=lap.stop_shard + shards) for lap in order.left)  # from the first shard on
    return replace(order, shard_samples=(0,) * shards + order.shard_samples, left=tuple(left))


def _refuse_same(label: str, parts: list[Part]) -> None:
    """Raise UsageError if two datasets of a mixture have the same images."""
    seen: dict[tuple[str, str], str] = {}
    for part in parts:
        identity = part.dataset.manifest.plan_hash, part.dataset.split.index["sha256"]
        if identity in seen:
            raise UsageError(
                f"{label}: {seen[identity]} and {part.name} have the same images in the same order, so batches would "
                "contain images twice; list only one, with the weight of both"
            )
        seen[identity] = part.name


def _split_names(url: str) -> list[str]:
    storage = with_deadline(open_storage(url), DEADLINE_S)
    manifest = read_manifest(storage)
    if manifest is None:
        raise no_dataset(storage)
    return [split.name for split in manifest.splits]
