"""The loader: one seed gives the same batches on any number of hosts, and training can resume after each batch.

    with open_loader("gs://bucket/imagenet", batch_size=1024, rank=0, world_size=4) as loader:
        for batch in loader:                 # one epoch; the next `for` takes the next epoch
            step(batch.images, batch.labels)
            save(batch.state)                # resumes after this batch, with another number of ranks, too

Shapes: NHWC, uint8, 0..255. Normalise on the device, so that a quarter of the bytes is transferred.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, Unpack, cast, runtime_checkable

from dataprep.arrays import np
from dataprep.dataset.documents import MAX_COUNT, convert, differences
from dataprep.errors import UsageError
from dataprep.messages import counted, quoted
from loaders.config import OF_PIXELS, LoaderConfig, LoaderSettings, SharedSettings, Views, check_names, checked_groups
from loaders.decode.decoders import open_decoder, warn_of_libraries
from loaders.decode.seeding import check_program, end_if_worker
from loaders.engine.batch import (
    Batch,
    BatchPlan,
    Data,
    DatasetIdentity,
    EarlierData,
    LoaderState,
    PackBatch,
    ViewBatch,
    ViewIdentity,
)
from loaders.engine.stats import LoaderStats, Moment, Snapshot, Stats, open_tracer, trace_batch
from loaders.order import Batches, Order, check_budget, check_world, ramped, samples_per_block
from loaders.packs import Packs

if TYPE_CHECKING:
    from loaders.dataset import Dataset
    from loaders.engine.pipeline import Rows
    from loaders.engine.producer import Producer
    from loaders.fetch.index import SplitIndex
    from loaders.fetch.plain import Growth
    from loaders.metrics.exposition import Registration

STATE_VERSION = 1
OWN_THREADS = "loader-"
"""Prefix of the names of all threads that loaders start."""
_NEW_ORDER_ADVICE = (
    "load the weights of the model alone, without this state, to begin the new order at its first image "
    '("PyTorch" in docs/loaders.md shows how)'
)
"""Advice for a state of another build of the dataset."""
OF_DATA = Data.__annotations__.keys()
"""Parts of a sequence that may change within a run."""
_SINGLE_VIEW_ONLY = LoaderSettings.__annotations__.keys() - SharedSettings.__annotations__.keys()
"""Settings of a single view of an image."""


@runtime_checkable
class OpensLoader(Protocol):
    """Data with their own loader: `loaders.mixture`."""

    def open_loader(self, split: str, config: LoaderConfig) -> Loader:
        """Open a loader with settings that were checked already."""


def open_loader(
    url: str | PathLike[str] | OpensLoader, split: str = "train", *, batch_size: int, **settings: Unpack[LoaderSettings]
) -> Loader:
    """Open a loader over one split of a dataset.

    Args:
        url: Folder or URL of a dataset, or of plain data such as pictures or tars, which are indexed first; or
            several datasets, as `loaders.mixture`.
        split: Name of a split; in a mixture, for the datasets that name none.
        batch_size: Images in one step, over all ranks.
        settings: Other settings; `loaders.LoaderConfig` says what each means. By default only the split `train` is
            shuffled (`shuffle`), and what is shuffled is augmented (`augment`).

    Raises:
        UsageError: There is no such dataset, split or setting, or a value has the wrong type or is out of range.
    """
    for name, door in (("packs", "open_packs"), ("view_groups", "open_views")):
        if name in settings:
            raise UsageError(f"open_loader has no setting {name}; call {door} instead")
    return open_configured(url, split, config_of(url, split, settings, batch_size), grows=True)


def open_packs(
    url: str | PathLike[str] | OpensLoader,
    split: str = "train",
    *,
    batch_size: int,
    packs: Packs,
    **settings: Unpack[LoaderSettings],
) -> PackLoader:
    """Open a loader that delivers images at their own aspect ratio, as patches in rows of one length.

    Args:
        url: Folder or URL of a dataset, or of plain data such as pictures or tars, which are indexed first; or
            several datasets, as `loaders.mixture`.
        split: Name of a split.
        batch_size: Images in one step, over all ranks; a multiple of the images in a row times the number of ranks.
        packs: Length of the rows, images in a row, side of a patch, and bounds of an image's tokens.
        settings: Other settings, as for `open_loader`. With `augment` the number of an image's tokens is drawn and the
            image flipped; without it all images have about the same number. The settings of squares are ignored:
            `image_size`, `scale`, `ratio`, `clip_crop` and `resize`.

    Raises:
        UsageError: As for `open_loader`, or the index does not have the images' sizes.
    """
    if not isinstance(packs, Packs):
        raise UsageError(f"packs must be loaders.Packs, got {packs!r}")
    config = config_of(url, split, settings, batch_size, packs=packs)
    return cast(PackLoader, open_configured(url, split, config))


def open_views(
    url: str | PathLike[str] | OpensLoader,
    split: str = "train",
    *,
    batch_size: int,
    views: Views | Sequence[Views],
    **settings: Unpack[SharedSettings],
) -> ViewLoader:
    """Open a loader that delivers several views of each image, made from one decode: random crops, in groups of one
    size.

    A view depends only on its own settings, the seed, the image's position and the view's number, counted over all
    groups. Other views do not change its pixels, and view 0 is the image that `open_loader` delivers for the same crop.

    Args:
        url: Folder or URL of a dataset, or of plain data such as pictures or tars, which are indexed first; or
            several datasets, as `loaders.mixture`.
        split: Name of a split.
        batch_size: Images in one step, over all ranks.
        views: Groups of views of each image: 64 views at most.
        settings: Other settings of `open_loader`, except those of a single view: `image_size`, `scale`,
            `augment`, `resize` and `views`. `ratio`, `flip` and `clip_crop` hold for every view.

    Raises:
        UsageError: As for `open_loader`.
    """
    if wrong := sorted(_SINGLE_VIEW_ONLY & set(settings)):
        raise UsageError(f"open_views has no setting {', '.join(wrong)}; set size and area in each `Views` instead")
    groups, single = checked_groups(views), cast(LoaderSettings, settings)
    single["augment"] = True
    config = config_of(url, split, single, batch_size, view_groups=groups)
    return cast(ViewLoader, open_configured(url, split, config, grows=True))


def open_configured(
    url: str | PathLike[str] | OpensLoader, split: str, config: LoaderConfig, *, grows: bool = False
) -> Loader:
    """Open a loader as `open_loader` does, with settings that were checked already; if it `grows`, batches may come
    before all images of a large folder are known."""
    end_if_worker()
    if config.processes:
        check_program(config.processes)
    if isinstance(url, OpensLoader):
        return url.open_loader(split, config)
    # Imported here, so that importing a loader does not import the readers of data.
    from loaders.dataset import PlainData, open_dataset

    dataset = open_dataset(
        str(url),
        split,
        config.region_policy,
        deadline_s=config.deadline_s,
        plain=PlainData(config.index, grows=grows and config.shuffle, fields=config.fields),
    )
    try:
        return loader_of(dataset, config)
    except BaseException:
        if dataset.growth is not None:
            dataset.growth.close()
        raise


def loader_of(dataset: Dataset, config: LoaderConfig) -> Loader:
    """Return a loader of the kind that the settings describe."""
    kind = PackLoader if config.packs is not None else ViewLoader if config.view_groups else Loader
    return kind(dataset, config)


def config_of(
    url: str | PathLike[str] | OpensLoader, split: str, settings: LoaderSettings, batch_size: int, **kind: Any
) -> LoaderConfig:
    """Check all settings, and return them with defaults that depend on the split."""
    if not isinstance(url, str | PathLike | OpensLoader) or not isinstance(split, str):
        raise UsageError(f"url and split must be a folder or URL and a name, got {url!r} and {split!r}")
    check_names(settings)
    if settings.get("shuffle") is None:
        settings["shuffle"] = split == "train"
    if settings.get("augment") is None:
        settings["augment"] = settings["shuffle"]
    # The config checks every value, and makes tuples of lists.
    return LoaderConfig(batch_size=batch_size, **kind, **settings)  # type: ignore[arg-type]


def order_of(dataset: Dataset, index: SplitIndex, config: LoaderConfig) -> Order:
    """Return the order of a dataset with the settings of a loader."""
    counts = tuple(shard["samples"] for shard in dataset.split.shards)
    at_once = samples_per_block(
        sum(counts),
        index.mean_image_bytes(),
        block_bytes=config.block_bytes,
        num_streams=config.num_streams,
        window=config.window,
    )
    if config.shuffle and not dataset.manifest.shuffled:
        at_once = 1  # neighbours in a shard may have the same class: blocks of them would make batches of few classes
    return Order(
        shard_samples=counts,
        seed=config.seed,
        global_batch=config.batch_size,
        samples_per_block=at_once,
        passes=dataset.passes if config.shuffle else 1,
        heads=tuple(head["shards"] for head in dataset.heads),
        num_streams=config.num_streams,
        window=config.window,
    )


class Loader:
    """Iterates over batches, one epoch at a time.

    Training continues after the last batch that was taken. An evaluation starts again each time; only the first
    iteration after `load_state_dict` continues after the batch of the state.
    """

    _start = 0
    """Batch with which the next iteration of an evaluation starts."""
    _earlier: tuple[EarlierData, ...] = ()
    """Data of the run before each change of its dataset or view."""
    _ramp: tuple[tuple[int, int], ...] = ()
    """Positions and sizes of `ramp_batches`."""
    _growth: Growth | None = None
    """Maker of larger indexes while not all images are known."""
    _registration: Registration | None = None
    """Registration with the server of metrics."""
    _collected: weakref.finalize[..., Any] | None = None
    """Ends the producer of a loader that is not closed."""

    def __init__(self, dataset: Dataset, config: LoaderConfig, index: SplitIndex | None = None) -> None:
        check_world(config.batch_size, config.rank, config.world_size)
        if config.fields:
            dataset = dataset.with_columns(config.fields, config.deadline_s)
        self.dataset, self.config, self._growth = dataset, config, dataset.growth
        if config.fields:
            self._check_fields(dataset.check_fields)
        warn_of_libraries(config.decoder)
        self.index = dataset.open_index(config.deadline_s) if index is None else index
        self._known = self._order()
        if config.fields:
            self._check_fields(lambda names: dataset.check_stored_fields(names, self.index, config.deadline_s))
        self._stats = Stats()
        self._skipped: Counter[str] = Counter()
        if config.shuffle:
            self._check_budget()
            if dataset.growth is None:
                self._warn_of_large_batch()
        self._batch = 0
        """Number of the next batch to be taken, counted over all epochs."""
        self._producer: Producer | None = None
        self._images = 0
        """Number of images that were delivered."""
        self._fetched: dict[str, float] = {}
        """Counters of the fetchers of producers that have ended."""
        self._counting = threading.Lock()
        self._serve()

    def _check_fields(self, check: Callable[[tuple[str, ...]], None]) -> None:
        """Check the fields of the settings; if only the fields with the size of annotations are missing, the error says
        how to do without them. `check` raises UsageError for fields that the dataset does not have."""
        from loaders.decode.annotations import WITHOUT_SIZE, size_fields

        size = size_fields(self.config.transform)
        if others := tuple(name for name in self.config.fields if name not in size):
            check(others)
        if size:
            try:
                check(size)
            except UsageError as error:
                raise UsageError(f"{error}; {WITHOUT_SIZE}") from error

    @property
    def order(self) -> Order:
        """The order of all samples; if they are not all known yet, this waits until they are."""
        while self._grow():
            pass
        return self._known

    @order.setter
    def order(self, order: Order) -> None:
        self._known = order
        self.__dict__.pop("_sequence", None)

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch belongs to."""
        is_first = not self.config.shuffle or self._growth is not None
        return 0 if is_first else self._known.epoch_of(self._batch)

    def __repr__(self) -> str:
        size = "" if self.config.packs else f", image_size={self.config.image_size}"
        place = f"{self.dataset.data_url!r}, {self.dataset.split.name!r}"
        return f"{type(self).__name__}({place}, batch_size={self.config.batch_size}{size})"

    def __len__(self) -> int:
        """Return the number of steps in the epoch of the next batch; this waits until all images are known."""
        if not self.config.shuffle:
            return -(-self.order.num_samples // self.config.batch_size)
        return self.order.steps(self.epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rest of the epoch."""
        return (
            Batch(rows.images, rows.labels, rows.keys, rows.mask, rows.fields, self.state_dict(), rows.views)
            for rows in self._rows()
        )

    def _rows(self) -> Iterator[Rows]:
        """Return the rows of the rest of the epoch, one batch after the other."""
        self._begin()
        return self._taken()

    def _begin(self) -> None:
        """Go to the first batch of an evaluation, or to the batch after a loaded state; take the next batch's size.

        This happens when an iterator is made, not when its first batch is taken: a StatefulDataLoader that resumes at
        the end of a pass makes an iterator for the state, takes nothing from it, and makes another for the next pass.
        """
        if not self.config.shuffle:
            start, self._start = self._start, 0
            self._go_to(start)
        if (size := self._known.batches_with(self._batch).size) != self.config.batch_size:
            self._end_producer()
            self.config = replace(self.config, batch_size=size)

    def _taken(self) -> Iterator[Rows]:
        stop, index = self._end_of_epoch(), self.index
        while self._batch < stop or self.index is not index or self._grow():
            if self.index is not index:  # more images are known
                stop, index = self._end_of_epoch(), self.index
                continue
            if self._producer is None:
                self._serve()
                self._producer = self._open_producer()
            asked_s = time.monotonic()
            try:
                rows = next(self._producer)
            except BaseException:
                self._end_producer()
                raise
            self._count(rows, asked_s)
            yield rows
        self._end()

    def _grow(self) -> bool:
        """Wait for a larger index of a folder, and continue with it; False if all images are known. Raises SourceError
        if the data cannot be indexed, or have changed."""
        growth = self._growth
        if growth is None:
            return False
        from loaders.dataset import grown

        self._end_producer()
        self.dataset = grown(self.dataset)
        self._growth = self.dataset.growth
        self.index = self.dataset.open_index(self.config.deadline_s)
        self.order = replace(self._order(), resized=self._known.resized)
        if self._growth is None:
            growth.close()
        return True

    def _end(self) -> None:
        """Leave the state of a finished evaluation at the beginning of the next one, which starts its own threads."""
        if not self.config.shuffle:
            self._end_producer()
            self._batch = 0

    def _count(self, rows: Rows, asked_s: float) -> None:
        """Count a batch that was requested at `asked_s` and taken just now, and trace it if traces are wanted."""
        self._batch += 1
        self._start = 0  # a state that was loaded during an iteration affects that iteration, not the next
        self._skipped.update(rows.skipped)
        images = int(rows.mask.sum())
        self._images += images
        tracer = open_tracer()
        if tracer is not None:
            rows.moments.append(Moment("deliver", asked_s, time.monotonic()))
            numbers = {"rank": self.config.rank, "batch": self._batch - 1, "images": images}
            trace_batch(tracer, rows.moments, {"split": self.dataset.split.name, **numbers})

    def positions(self, batch: int) -> Sequence[int]:
        """Return the position of each image of this rank in a batch, counted over all epochs: a key for random draws.

        Random draws that are keyed by a sample's position are the same for every number of ranks. Positions ascend; the
        images of a pack's rows have another order.

        Args:
            batch: Number of the batch, counted over all epochs: `order.batch_at(batch.state["position"]) - 1`.
        """
        start = self._known.batch_start
        return range(start(batch) + self.config.rank, start(batch + 1), self.config.world_size)

    def ramp_batches(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Change the size of batches on the way, in a loader that has delivered none yet; the samples stay in order.

        An iteration ends before a batch of another size, as at the end of an epoch.

        Args:
            sizes: Position and size, ascending from position 0: the size of all batches that begin there or later.

        Raises:
            UsageError: The ranks, or the rows of packs, cannot share a batch.
        """
        for _, size in sizes:
            check_world(size, self.config.rank, self.config.world_size)
            replace(self.config, batch_size=size)  # which checks the packs
        self._ramp = tuple(sizes)
        self.order = replace(self.order, resized=self._first_batches())

    def _first_batches(self) -> tuple[Batches, ...]:
        """Return the batches of a new run, () if all have one size."""
        return ramped(Batches(0, 0, self._ramp[0][1]), self._ramp[1:]) if self._ramp else ()

    def set_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch; an evaluation has one epoch, and stays where it is.

        An epoch that began with another revision, view or batch size begins again, with all images of this one.
        """
        if self.config.shuffle:
            self._go_to(self.order_from(epoch).first_batch(epoch))

    def order_from(self, epoch: int) -> Order:
        """Return the order that has an epoch's first batch: a new run's if this run's order no longer has it."""
        order = self.order
        if (self._earlier and epoch < order.first_epoch) or order.first_position(epoch) < order.batches[0].position:
            self._end_producer()
            self.order, self._earlier = replace(self._order(), resized=self._first_batches()), ()
        return self.order

    def state_dict(self) -> LoaderState:
        """Return the state after the last batch that was taken: position, and all that the sequence depends on."""
        state: LoaderState = {
            "state_version": STATE_VERSION,
            "position": self._known.batch_start(self._batch),
            "epoch": self.epoch,
            "sequence": self._sequence,
        }
        if self._known.resized:
            number, position, size = self._known.batches_with(self._batch)
            state["batches"] = [number, position]
            state["sequence"] = {**self._sequence, "batch_size": size}
        return {**state, "earlier": list(self._earlier)} if self._earlier else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the batch of a state, which may come from another number of ranks, with another size of
        batches, or from other pixels of the same images, such as another `image_size` or `transform`.

        The sequence of images continues, whatever the batch size. Training also continues from an earlier revision of
        the dataset, or with another view: the rest of its epoch comes once, without images that were removed or are not
        in the view; new images are added from the next epoch on. A line on stderr says how many.

        Raises:
            UsageError: The state belongs to another sequence; the message says what differs.
        """
        state = self._expanded(state)
        self._check_state(state)
        batches, batch = self._batches_after(state)
        order, earlier = self._order_after(state)
        order = replace(order, resized=batches)
        if order != self._known:
            self._end_producer()
            self.order = order
        self._go_to(batch)
        self._earlier, self._start = earlier, batch

    def _order_after(self, state: Mapping[str, Any]) -> tuple[Order, tuple[EarlierData, ...]]:
        """Return the order of a run over these data, after earlier revisions or views, and its data until each
        change."""
        if not (self._is_changed(state) or state.get("earlier") or self._earlier):
            return self._known, ()
        from loaders.engine.resumption import resumed  # here: few runs go through changes

        data: Data = {name: self._sequence[name] for name in OF_DATA}  # type: ignore[assignment]
        found = resumed(self.dataset, self._order(), data, state)
        if found.message and self.config.rank == 0:
            print(found.message, file=sys.stderr)
        return found.order, found.earlier

    def _is_changed(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is of another revision or view of the same build."""
        ours, theirs = self._sequence.get("dataset"), self._reached(state).get("dataset")
        return isinstance(ours, dict) and isinstance(theirs, Mapping) and ours != theirs

    def check_build(self, state: Mapping[str, Any], advice: str = _NEW_ORDER_ADVICE) -> None:
        """Check that a state belongs to this build of the dataset.

        Args:
            state: State of a loader.
            advice: Advice for the message.

        Raises:
            UsageError: The dataset, or one of a mixture, was built or adopted again since the state was made; the
                message describes both builds.
        """
        theirs = self._reached(self._expanded(state))
        if lines := other_builds(self._sequence, theirs):
            raise UsageError(
                f"{self.dataset.data_url}: the dataset was built or adopted again since the state was made, or is "
                f"another build: {'; '.join(lines)}; its images have another order: {advice}"
            )

    def other_decoder(self, state: Mapping[str, Any]) -> str:
        """Return the decoder of a state, if its pixels differ from those of this loader's decoder or are not known; ''
        if they are the same."""
        theirs = self._reached(self._expanded(state))
        known = next((name for name in ("pixels", "decoder") if name in theirs), None)
        return "" if known is None or theirs[known] == self._decoding[known] else str(theirs.get("decoder"))

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Return to a state of this loader, for adapters that take batches ahead; an evaluation still starts over."""
        self._go_to(self._known.batch_at(state["position"]))

    def _batches_after(self, state: Mapping[str, Any]) -> tuple[tuple[Batches, ...], int]:
        """Return the sizes of the batches after a state, () if they never changed, and the number of the next one.
        Raises UsageError if the position is not one between two batches, or not one of an evaluation with this batch
        size."""
        position, then = state["position"], self._reached(state)["batch_size"]
        size = next((size for start, size in reversed(self._ramp) if position >= start), self.config.batch_size)
        first, start = state.get("batches", (0, 0))
        done, rest = divmod(position - start, then)
        if rest or done < 0:
            raise UsageError(
                f"the state's position must be {start:,} and a multiple of the batch of {then:,}, got {position:,}; "
                "use a state that a loader returned"
            )
        if self.config.shuffle:
            batches = Batches(first, start, size) if then == size else Batches(first + done, position, size)
            if self._ramp:
                return ramped(batches, [each for each in self._ramp if each[0] > position]), first + done
            return () if batches == Batches(0, 0, size) else (batches,), first + done
        if position % size:
            raise UsageError(
                f"{self.dataset.data_url}: an evaluation continues after complete batches, and the state's "
                f"{position:,} images are not a multiple of {size:,}; use its batch_size of {then:,}, or begin again "
                "without it"
            )
        return (), position // size

    def _expanded(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state in the form that this loader computes with; older ones have longer hashes of plans."""
        if not isinstance(state, Mapping) or not isinstance(state.get("sequence"), Mapping):
            return state  # which is refused later
        return {**with_short_plans(state), "sequence": with_short_plans(state["sequence"])}

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError if a state is damaged or belongs to another sequence."""
        if not isinstance(state, Mapping) or not isinstance(state.get("sequence", {}), Mapping):
            raise UsageError(f"a state must be what state_dict() returned, got {quoted(state)}")
        if state.get("state_version") != STATE_VERSION:
            raise UsageError(f"state of version {state.get('state_version')}, this loader takes {STATE_VERSION}")
        convert(
            dict(state), LoaderState, where="the state", advice="use a state that a loader returned", error=UsageError
        )
        self.check_build(state)
        ours, theirs = self._compared(state)
        batch = theirs.pop("batch_size", None)
        if not isinstance(batch, int) or not 1 <= batch < MAX_COUNT:
            raise UsageError(f"the state's batch_size must be a number of images, got {quoted(batch)}")
        del ours["batch_size"]
        here, there = ({name: part.pop(name, None) for name in OF_PIXELS} for part in (ours, theirs))
        for part in (here, there):
            for name in ("pixels",) if self.other_decoder(state) else ("pixels", "decoder"):
                del part[name]
        if lines := differences(ours, theirs, where="in the state"):
            what = "; ".join(lines)
            raise UsageError(
                f"{self.dataset.data_url}: the state is of another sequence: {what}; use the same settings"
            )
        if (lines := differences(here, there, where="in the state")) and self.config.rank == 0:
            print(f"{self.dataset.data_url}: continues with other images: {'; '.join(lines)}", file=sys.stderr)

    def _compared(self, state: Mapping[str, Any]) -> tuple[dict[str, object], dict[str, object]]:
        """Return our sequence and a state's, without the parts that may differ."""
        ours, theirs = dict(self._sequence), dict(self._reached(state))
        if self._is_changed(state):
            if not self.config.shuffle:
                raise UsageError(
                    f"{self.dataset.data_url}: the state is of another revision or view, with which an evaluation "
                    "cannot continue; begin it again, without the state"
                )
            ours, theirs = ({name: part[name] for name in part if name not in OF_DATA} for part in (ours, theirs))
        return ours, theirs

    def _reached(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the sequence of a state. A state from when fewer images were known is the beginning of this sequence;
        for a state from when more were known, wait until they are."""
        sequence: Mapping[str, Any] = state.get("sequence", {})
        theirs = sequence.get("dataset")
        plan = theirs.get("plan") if isinstance(theirs, Mapping) else None
        while self._growth is not None and plan != short_plan(self.dataset.plan):
            self._grow()
        if self._known.heads and any(plan == short_plan(head["plan"]) for head in self.dataset.heads):
            return {**sequence, **{name: self._sequence[name] for name in ("dataset", "samples")}}
        return sequence

    def stats(self) -> LoaderStats:
        """Return work and waits of every stage, the fetchers' counters, and counts of skipped images.

        A time that a stage did not measure is None and has no entry in its `percentiles`.
        """
        return self.snapshot().stats()

    def snapshot(self) -> Snapshot:
        """Return everything that is counted; any thread may call this."""
        with self._counting:
            producer = self._producer
            present = producer.fetch_stats() if producer is not None else {}
            fetch = _summed(self._fetched, present)
        return Snapshot(
            stages=self._stats.times(),
            fetch=fetch,
            skipped=dict(self._skipped),
            images=self._images,
            epoch=self.epoch,
            batch=self._batch,
            ready_batches=producer.ready_batches() if producer is not None else 0,
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by label; empty if they are not known."""
        return self.dataset.manifest.classes

    @property
    def metrics_url(self) -> str | None:
        """URL of the metrics, with the setting `metrics_port`."""
        return None if self._registration is None else self._registration.url

    def close(self) -> None:
        """End threads, processes and the serving of metrics; a loader that is used again starts new ones, unless it
        was closed before it knew all images."""
        self._end_producer()
        if self._growth is not None:
            self._growth.close()
        if self._registration is not None:
            self._registration.close()
            self._registration = None

    def _end_producer(self) -> None:
        """End threads and processes."""
        if self._producer is None:
            return
        with self._counting:
            producer, self._producer = self._producer, None
            if producer is not None:  # no other thread has ended it in the meantime
                self._fetched = _summed(self._fetched, producer.fetch_stats() | {"held_bytes": 0.0})
        if producer is not None:
            if self._collected is not None:
                self._collected.detach()
            producer.close()

    def _serve(self) -> None:
        """Serve metrics if a port for them is set and they are not served yet."""
        if self.config.metrics_port is None or self._registration is not None:
            return
        from loaders.metrics.exposition import serve

        address, port = self.config.metrics_address, self.config.metrics_port
        self._registration = serve(self, self.dataset.split.name, address, port)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _go_to(self, batch: int) -> None:
        if batch != self._batch or not self.config.shuffle:
            self._end_producer()
        self._batch = batch

    def _end_of_epoch(self) -> int:
        if self._growth is not None:
            return self._known.batch_at(self._known.num_samples)  # a batch is never cut
        stop = self.order.first_batch(self.epoch + 1) if self.config.shuffle else len(self)
        return min([stop, *(each.number for each in self._known.resized if each.number > self._batch)])

    def _order(self) -> Order:
        return order_of(self.dataset, self.index, self.config)

    def _check_budget(self) -> None:
        """Raise UsageError if the order would hold more bytes than the budget for a bucket."""
        sharers = max(1, self.config.processes)  # each worker process fetches for itself
        budget, readers = self.config.prefetch_bytes // sharers, self.config.world_size * sharers
        image_bytes = 0.0 if self.dataset.is_local else self.index.mean_image_bytes()
        if not self.dataset.is_local:
            sample_bytes = image_bytes + sum(map(self.dataset.column_bytes, self.dataset.columns))
            check_budget(self._known, readers, sample_bytes, budget)
        if self.dataset.columns:
            self.dataset = self.dataset.reading_columns(self._known, readers, image_bytes, budget)

    def _warn_of_large_batch(self) -> None:
        """Warn on the first rank if the split has fewer images than a batch, so that batches repeat images."""
        images, batch = self._known.num_samples, self.config.batch_size
        if batch > images and self.config.rank == 0:
            warnings.warn(
                f"{self.dataset.data_url}: a batch of {batch:,} is larger than the split {self.dataset.split.name}, "
                f"which has {counted(images, 'image')}: each batch repeats images, and spans several epochs; choose a "
                f"batch size of {images:,} at most",
                UserWarning,
                stacklevel=6,  # the caller of open_loader
            )

    def _plan(self, kind: type[BatchPlan] = BatchPlan) -> BatchPlan:
        """Return the plan of the batches from the next one on."""
        config = self.config
        return kind(
            order=self._known,
            shuffle=config.shuffle,
            rank=config.rank,
            world_size=config.world_size,
            first_batch=self._batch,
            row_images=config.row_images,
        )

    def _open_producer(self) -> Producer:
        from loaders.engine.producer import open_producer

        if self._growth is not None:
            self._growth.check_open()
        producer = open_producer(self.dataset, self.index, self.config, self._plan(), self._stats)
        warning = f"{self.dataset.data_url}: a loader was not closed; open it in a `with` block, or call its close()"
        self._collected = end_when_collected(self, producer.close, warning)
        return producer

    @cached_property
    def _sequence(self) -> dict[str, object]:
        order = self._known
        return {
            "dataset": identity_of(self.dataset),
            "split": self.dataset.split.name,
            "samples": order.num_samples,
            "samples_per_block": order.samples_per_block,
            "passes": order.passes,
            **self._decoding,
        }

    @property
    def _decoding(self) -> dict[str, object]:
        """The decoder and the settings that the sequence depends on."""
        decoder = open_decoder(self.config.interpolation, self.config.decoder)
        return {"decoder": decoder.name, "pixels": decoder.pixels, **self.config.sequence_document()}


def end_when_collected(owner: object, close: Callable[[], None], warning: str = "") -> weakref.finalize[..., Any]:
    """Call `close` when nothing refers to the owner any more, and then warn; `close` must not refer to the owner."""
    found = weakref.finalize(owner, _end_collected, close, warning, os.getpid())
    found.atexit = False
    return found


def _end_collected(close: Callable[[], None], warning: str, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked process has copies of what its parent uses
    if threading.current_thread().name.startswith(OWN_THREADS):
        # The garbage collector may run in any thread, and no thread can wait for its own end.
        threading.Thread(target=close, name=f"{OWN_THREADS}close", daemon=True).start()
    else:
        close()
    if warning:
        warnings.warn(warning, ResourceWarning, stacklevel=2)


def _summed(ended: Mapping[str, float], present: Mapping[str, float]) -> dict[str, float]:
    """Add the counters of fetchers; the most held bytes are the maximum over the fetchers."""
    total = {name: ended.get(name, 0.0) + count for name, count in present.items()}
    if "most_held_bytes" in present:
        total["most_held_bytes"] = max(ended.get("most_held_bytes", 0.0), present["most_held_bytes"])
    return total or dict(ended)


class PackLoader(Loader):
    """Iterates over batches of packs; otherwise as `Loader`."""

    def __iter__(self) -> Iterator[PackBatch]:
        """Yield the rest of the epoch."""
        return (_pack_batch(rows, self.state_dict()) for rows in self._rows())


class ViewLoader(Loader):
    """Iterates over batches with several views of each image; otherwise as `Loader`."""

    def __iter__(self) -> Iterator[ViewBatch]:
        """Yield the rest of the epoch."""
        return (
            ViewBatch(rows.groups, rows.labels, rows.keys, rows.mask, rows.fields, self.state_dict())
            for rows in self._rows()
        )


def _pack_batch(rows: Rows, state: LoaderState) -> PackBatch:
    layout, num_rows = rows.layout, len(rows.images)
    if layout is None or rows.grids is None:
        raise UsageError("this loader yields square images, expected packs; open it with `open_packs`")
    fields = {
        name: each.reshape(num_rows, -1, *each.shape[1:]) if isinstance(each, np.ndarray) else each
        for name, each in rows.fields.items()
    }
    return PackBatch(
        rows.images,
        rows.labels.reshape(num_rows, -1),
        rows.keys,
        rows.mask.reshape(num_rows, -1),
        fields,
        state,
        segments=layout.segments_RT,
        positions=layout.positions_RT2,
        token_mask=layout.segments_RT > 0,
        grids=rows.grids.reshape(num_rows, -1, 2),
    )


def identity_of(dataset: Dataset) -> DatasetIdentity:
    """Return a state's description of a dataset."""
    manifest, view = dataset.manifest, dataset.view
    found: DatasetIdentity = {
        "name": manifest.name,
        "plan": short_plan(dataset.plan),
        "revision": manifest.revision,
    }
    return found if view is None else {**found, "view": ViewIdentity(name=view.view.name, sha256=view.sha256)}


def short_plan(plan: str) -> str:
    """Return the digits of a plan's hash that a state has: 64 bits."""
    return plan[:PLAN_DIGITS]


def with_short_plans(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part of a state with short hashes of the plans of its dataset, and of what was loaded before."""
    found, dataset, earlier = dict(part), part.get("dataset"), part.get("earlier")
    if isinstance(dataset, Mapping) and isinstance(dataset.get("plan"), str):
        found["dataset"] = {**dataset, "plan": short_plan(dataset["plan"])}
    if isinstance(earlier, list):
        found["earlier"] = [with_short_plans(each) if isinstance(each, Mapping) else each for each in earlier]
    return found


PLAN_DIGITS = 16
"""Number of digits of a plan's hash in a state."""
SHOWN_DIGITS = 12
"""Number of digits of a plan's hash in a message, as `dataprep inspect` shows it."""


def other_builds(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return a line for each dataset that has the same name in a state but is another build."""
    return [
        f"{label}{_described(before, 'then')}, {_described(now, 'now')}"
        for label, now, before in _pairs(ours, theirs)
        if _identity(now) and _identity(before) and _identity(now)[0] != _identity(before)[0]
    ]


def _pairs(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts about each dataset, also in a mixture: its label for messages, our part, their part."""
    if "datasets" not in ours:
        yield "", ours, theirs
        return
    before = theirs.get("datasets")
    for name, now in ours["datasets"].items():
        if isinstance(before, Mapping) and name in before:
            yield f"{name}: ", now, before[name]


def _identity(part: Any) -> tuple[Any, ...]:
    """Return plan, revision and view of the dataset in a part of a sequence, and () if it has none."""
    dataset = part.get("dataset") if isinstance(part, Mapping) else None
    if not isinstance(dataset, Mapping) or not isinstance(dataset.get("plan"), str):
        return ()
    return tuple(dataset.get(name) for name in ("plan", "revision", "view"))


def _described(part: Mapping[str, Any], when: str) -> str:
    plan, revision, view = _identity(part)
    images = part.get("samples")
    count = f"{images:,}" if isinstance(images, int) else str(images)
    of = f", view {view['name']}" if isinstance(view, Mapping) and "name" in view else ""
    return f"{count} images {when} (plan {plan[:SHOWN_DIGITS]}, revision {revision}{of})"
