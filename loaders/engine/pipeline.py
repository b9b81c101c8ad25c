"""From picks to the rows of a batch, in threads: fetch, check, crop, decode, transform.

    planner thread          looks up shards, requests bytes in the order of need          -> tickets
    decoding threads        wait for the bytes, decode a few images a call, outside the interpreter lock
    consumer of a batch     waits for its last row

Rows are written where they belong, so nothing is copied and no row waits for another. A thread that waits for a disk,
or that never returns from a decoder or transform, cannot be ended: the consumer gives up after `stall_s` without
progress instead, with an error that names what hangs (`BatchWatch`). Shapes: NHWC, uint8.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dataprep.arrays import NDArray, np
from dataprep.dataset.paths import named
from dataprep.dataset.records import NO_LABEL
from dataprep.errors import DataprepError, FormatError, ImageError, StorageError, UsageError
from dataprep.host.heartbeat import Standstill, minutes
from dataprep.host.processes import Threads
from dataprep.storage.checksums import crc32c_of
from loaders.config import FieldsTransform, LoaderConfig, spans
from loaders.dataset import DATASET_FIELD, Dataset, Origin
from loaders.decode.crop import (
    RowView,
    View,
    as_views,
    evaluation_view,
    grouped_views,
    letterbox_views,
    transform_generator,
    whole_views,
)
from loaders.decode.decoders import cut_patches, image_of_patches, images_of_row, open_decoder
from loaders.decode.seeding import SeededTransform, thread_time
from loaders.engine.stats import Moment, Stats
from loaders.fetch.fetcher import FetchSettings, Record, Ticket
from loaders.order import Pick, Piece
from loaders.packs import Layout, lay_out, plan_alone, plan_rows, starts_of

if TYPE_CHECKING:
    from dataprep.dataset.column_files import OpenedColumn
    from loaders.config import Transform
    from loaders.fetch.index import SplitIndex

T = TypeVar("T")

MAX_NAMED = 3
"""Maximum number of images, threads or shards that a message names."""


class Activity:
    """Current activity of each thread of a pipeline, and the number of finished activities."""

    def __init__(self) -> None:
        self.count = 0
        self._doing: dict[int, Callable[[], str]] = {}

    def begin(self, describe: Callable[[], str]) -> None:
        """Note the calling thread's activity; `describe` is called only if it hangs."""
        self._doing[threading.get_ident()] = describe

    def advance(self) -> None:
        """Count one more finished activity. Threads may lose each other's counts: only the change matters."""
        self.count += 1

    def end(self) -> None:
        """Note that the calling thread is idle."""
        self._doing.pop(threading.get_ident(), None)
        self.count += 1

    def __str__(self) -> str:
        return some([describe() for describe in list(self._doing.values())], "; ") or "nothing is in progress"


class BatchWatch:
    """Waits for the parts of one batch."""

    def __init__(self, activity: Activity, batch: int, stall_s: float) -> None:
        self._activity, self._batch, self._stall_s = activity, batch, stall_s
        self._still = Standstill(lambda: activity.count, stall_s)

    def wait(self, attempt: Callable[[float], T | None]) -> T:
        """Call `attempt` until it returns something; its argument says for how many seconds it may wait. Raises
        StorageError if there was no progress for too long; the message says what hangs."""
        while (found := attempt(self._still.poll_s)) is None:
            require_progress(
                self._still,
                self._stall_s,
                f"loader: batch {self._batch}: no image was read or decoded",
                lambda: f"in progress: {self._activity}",
                "Look whether the disk or the transform hangs, or raise stall_s, and resume from the last state",
            )
        return found

    def settled(self, future: Future[T], waiting: Callable[[], object] = lambda: None) -> T:
        """Wait for the result of a future; `waiting` is called each time before it is checked."""

        def attempt(seconds: float) -> Future[T] | None:
            waiting()
            with suppress(CancelledError, TimeoutError):
                future.exception(seconds)
            return future if future.done() else None

        return self.wait(attempt).result()


def require_progress(still: Standstill, stall_s: float, what: str, details: Callable[[], str], advice: str) -> None:
    """Check once for progress: warn on stderr after a minute without any, and raise an error after the limit. Raises
    StorageError if there was no progress for too long."""
    still.look()
    if still.is_over:
        idle = minutes(still.idle_s)
        raise StorageError(f"{what} for {idle} (stall_s {stall_s:g}); {details()}. {advice}")
    if still.warning_due():
        idle = minutes(still.idle_s)
        print(f"{what} for {idle}; an error after {minutes(stall_s)}; {details()}", file=sys.stderr)


def some(names: list[str], separator: str = ", ") -> str:
    """Join the first MAX_NAMED names, and say how many more there are."""
    more = len(names) - MAX_NAMED
    return separator.join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


class Place(NamedTuple):
    """View of one image, and place of its patches."""

    view: View
    start: int
    """First token of the image, counted over all rows of this rank's batch."""
    patches: int
    columns: int
    """Patches of the image, and of one row of its grid."""


def place_images(
    picks: Sequence[tuple[int, Pick]], index: SplitIndex, config: LoaderConfig, grids: NDArray[np.int32] | None
) -> list[Place]:
    """Plan the rows of packs that these picks fill, and return the place of each; without packs there are none.

    Args:
        picks: Places among the rank's images, row by row, with their samples; ascending by position. Rows are complete,
            except at the end of an evaluation.
        index: Index of the split.
        config: Settings of the loader.
        grids: Receives the grids of these images, shape (images of the rank, 2).

    Raises:
        UsageError: The index does not know the size of an image.
    """
    packs = config.packs
    if packs is None or grids is None or not picks:
        return []
    slots = np.array([slot for slot, _ in picks])
    sizes = np.array([_size(index, pick) for _, pick in picks], np.int64)
    rows, row = np.unique(slots // packs.images, return_inverse=True)
    planned_RM2 = np.zeros((len(rows), packs.images, 2), np.int32)
    at = row, slots % packs.images
    if config.augment:
        positions = [pick.position for _, pick in picks]
        seen = whole_views(config.seed, positions, sizes, crop=packs.crop, flip=config.flip)
        boxes, flips = seen.boxes, seen.flips
        # Images that are missing at the end of an evaluation are planned as if they were squares.
        sizes_RM2, draws_RM = np.ones(planned_RM2.shape, np.int64), np.zeros(planned_RM2.shape[:2])
        sizes_RM2[at], draws_RM[at] = boxes[:, 2:], seen.spare
        planned_RM2 = plan_rows(packs, sizes_RM2[..., 0], sizes_RM2[..., 1], draws_RM)
    else:
        boxes, flips = np.concatenate([np.zeros_like(sizes), sizes], axis=1), np.zeros(len(sizes), np.bool_)
        planned_RM2[at] = plan_alone(packs, sizes[:, 0], sizes[:, 1])
    grids[slots] = planned_RM2[at]
    starts = rows[row] * packs.tokens + starts_of(planned_RM2)[at]
    places = []
    numbers = np.concatenate([boxes, planned_RM2[at], starts[:, None]], axis=1).tolist()
    for (top, left, height, width, rows, columns, start), flip in zip(numbers, flips.tolist(), strict=True):
        view = View(top, left, height, width, rows * packs.patch, columns * packs.patch, 0, 0, flip)
        places.append(Place(view, start, rows * columns, columns))
    return places


def transform_patches(
    transform: Callable[[NDArray[np.uint8]], None], rows_RTV: NDArray[np.uint8], place: Place
) -> None:
    """Put an image together from its patches, let `transform` change it in place, and write it back."""
    flat = rows_RTV.reshape(-1, rows_RTV.shape[-1])
    image_HWC = image_of_patches(flat[place.start : place.start + place.patches], place.columns)
    transform(image_HWC)
    cut_patches(image_HWC, rows_RTV, place.start)


def _size(index: SplitIndex, pick: Pick) -> tuple[int, int]:
    entries, entry = index.find(Piece(pick.piece.shard, pick.sample, pick.sample + 1, 0))
    height, width = int(entries.height[entry]), int(entries.width[entry])
    if height < 1 or width < 1:
        raise UsageError(
            f"packs: the index has no height and width of {named(entries.key(entry))}, and packs are planned "
            "from them; make a dataset that has them with `dataprep convert`"
        )
    return height, width


CLOSE_S = 10.0
"""Longest wait of `close` for an image being decoded, unless `stall_s` is shorter; hanging threads are abandoned."""
CHUNK_ROWS = 64
"""Maximum number of images decoded in one task: drawing the crops of 64 takes 6 us an image, of 32 it takes 9 us."""
CLOSED = "loader: closed while a batch was awaited; iterate over it again to continue"
LOOKUPS_IN_FLIGHT = 32
"""Shards whose index entries are read at once, over a network."""


@dataclass(slots=True)
class Rows:
    """Rows that become a batch, in the order of their positions."""

    images: NDArray[np.uint8]
    """(rows, size, size, 3), or with packs (rows, tokens, bytes of a patch), or with several views all bytes of their
    groups; the others have an entry an image."""
    labels: NDArray[np.int64]
    mask: NDArray[np.bool_]
    """False where the row holds no sample: the tail of an evaluation, or an image that could not be read."""
    keys: list[str]
    fields: dict[str, list[Any] | NDArray[Any]]
    views: list[RowView | None] | None = None
    """Crop, scale and flip of each image, if the loader delivers them."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of masked rows by reason."""
    grids: NDArray[np.int32] | None = None
    """(images, 2): patches of each image along height and width; None without packs."""
    layout: Layout | None = None
    """Layout of the tokens, once the rows are finished."""
    moments: list[Moment] = field(default_factory=list)
    """Times of its images in each stage, for traces; decoding threads append to it."""
    groups: tuple[NDArray[np.uint8], ...] = ()
    """The memory of `images` by groups of views, each NVHWC: one group of one view for squares, none for packs."""


def finish(rows: Rows) -> Rows:
    """Set rows without a sample to 0, because their memory still has the images of another batch."""
    if rows.grids is not None:
        num_rows, tokens, _ = rows.images.shape
        grids_RM2 = rows.grids.reshape(num_rows, -1, 2)
        rows.layout = lay_out(grids_RM2, rows.mask.reshape(num_rows, -1), tokens)
        rows.images[rows.layout.segments_RT == 0] = 0
        rows.grids[~rows.mask] = 0
    elif not rows.mask.all():
        for images_NVHWC in rows.groups:
            images_NVHWC[~rows.mask] = 0
    return rows


def empty_rows(
    images: NDArray[np.uint8], config: LoaderConfig, columns: Mapping[str, OpenedColumn], count: int | None = None
) -> Rows:
    """Return rows to be filled, all of them masked: `count` of them, by default as many as a batch has."""
    count = config.rows if count is None else count
    labels, mask = np.full(count, NO_LABEL, np.int64), np.zeros(count, np.bool_)
    fields: dict[str, list[Any] | NDArray[Any]] = {name: [None] * count for name in config.fields}
    for name, column in columns.items():
        if not column.type.is_free:
            fields[name] = np.zeros((count, *column.type.lengths), column.type.dtype)
    rows = Rows(images, labels, mask, [""] * count, fields, [None] * count if config.views else None)
    rows.grids = None if config.packs is None else np.zeros((count, 2), np.int32)
    rows.groups = _groups(images, config, count)
    return rows


def _groups(images: NDArray[np.uint8], config: LoaderConfig, count: int) -> tuple[NDArray[np.uint8], ...]:
    if config.packs is not None:
        return ()
    if not config.view_groups:
        return (images[:, None],)
    return tuple(images[each.start : each.stop].reshape(each.shape) for each in spans(config.view_groups, count))


def fetch_settings(config: LoaderConfig, *, whole_records: bool) -> FetchSettings:
    """Return the fetch settings of one process."""
    sharers, cache = max(1, config.processes), None
    if config.cache_dir:
        from loaders.fetch.cache import DiskCache

        cache = DiskCache(Path(config.cache_dir), config.cache_bytes)
    return FetchSettings(
        prefetch_bytes=config.prefetch_bytes // sharers,
        threads=None if config.reads_in_flight is None else max(1, config.reads_in_flight // sharers),
        deadline_s=config.deadline_s,
        whole_records=whole_records,
        cache=cache,
    )


@dataclass(slots=True)
class _Image:
    """One image on its way into its row."""

    row: int
    pick: Pick
    ticket: Ticket
    data: bytes = b""
    values: Sequence[Any] = ()
    """Values of columns."""
    height: int = 0
    width: int = 0
    place: Place | None = None
    """Place of its patches, with packs."""


class Pipeline:
    """Fills rows of batches of one split."""

    def __init__(self, dataset: Dataset, index: SplitIndex, config: LoaderConfig, stats: Stats) -> None:
        self._dataset, self._index, self._origin_of = dataset, index, dataset.origin_of
        self._config, self._stats = config, stats
        stored = dataset.stored_fields(config.fields)
        self._stored_fields = dataset.open_fields(stored) if stored else None
        self.decoder = open_decoder(interpolation=config.interpolation, backend=config.decoder)
        self._fetcher = dataset.open_fetcher(index, fetch_settings(config, whole_records=bool(stored)))
        self.activity = Activity()
        self._decoding = Threads(config.num_threads, "loader-decode")
        self._lookups = Threads(0 if dataset.is_local else LOOKUPS_IN_FLIGHT, "loader-index")
        self._closed = False
        self._chunk_rows = min(CHUNK_ROWS, -(-config.rows // config.num_threads))
        """Images in one task; a small batch is divided among all threads."""

    def submit(self, picks: Sequence[tuple[int, Pick]], rows: Rows) -> list[Future[None]]:
        """Start to fill rows; they are filled when all futures are done. One thread calls this, in the plan's order;
        rows without a pick stay masked."""
        started_s = time.monotonic()
        self.activity.begin(lambda: self._planning(picks))
        if not self._dataset.is_local:
            lookups = [
                self._lookups.submit(partial(self._fetcher.load, shard))
                for shard in self._fetcher.shards_needed(pick for _, pick in picks)
            ]
            for lookup in lookups:
                lookup.result()  # read concurrently here, so that the requests below need not wait
        self._fetcher.look_up([pick for _, pick in picks])
        places = place_images(picks, self._index, self._config, rows.grids)
        self._stats.add("plan", items=len(picks), busy_s=time.monotonic() - started_s)
        futures = []
        for first in range(0, len(picks), self._chunk_rows):
            waited_s = time.monotonic()
            chunk = [_Image(row, pick, self._fetcher.request(pick)) for row, pick in picks[first:][: self._chunk_rows]]
            for image, place in zip(chunk, places[first:], strict=False):
                image.place = place
            self._stats.add("plan", put_wait_s=time.monotonic() - waited_s)
            self.activity.advance()
            futures.append(self._decoding.submit(partial(self._fill, chunk, rows)))
        rows.moments.append(Moment("plan", started_s, time.monotonic()))
        self.activity.end()
        return futures

    def fill(self, row: int, pick: Pick, rows: Rows, requesting: AbstractContextManager[object]) -> None:
        """Fill one row in the calling thread, for samples that are requested singly; safe in many threads. `requesting`
        is a lock that all callers share; it is held while the bytes are requested, not until they arrive."""
        self._fetcher.load(pick.piece.shard)  # many threads may read entries at once; the request need not wait
        with requesting:
            image = _Image(row, pick, self._fetcher.request(pick))
        self._fill([image], rows)

    def fetch_stats(self) -> dict[str, float]:
        """Return the counters of the fetcher."""
        return self._fetcher.stats()

    def close(self) -> None:
        """End the threads and give up images that are not decoded; this never hangs."""
        self._closed = True
        self._fetcher.close()
        deadline_s = time.monotonic() + min(CLOSE_S, self._config.stall_s)
        self._lookups.close(deadline_s)
        self._decoding.close(deadline_s)
        for transform in self._config.transforms:
            if isinstance(transform, SeededTransform):
                transform.close()

    def _fill(self, chunk: list[_Image], rows: Rows) -> None:
        started_s = time.monotonic()
        # Every ticket is released whatever happens here: the planner waits for its bytes, and a ticket that is never
        # released would stop it forever once the budget is full. Rows of one batch are written by many threads without
        # a lock, because each image has its own row; the futures of a batch order these writes before its delivery.
        try:
            fetched = [image for image in chunk if self._is_fetched(image, rows)]
            fetched_s = time.monotonic()
            if fetched:
                self._set_columns(fetched, rows)
                self._decode(fetched, rows)
        finally:
            for image in chunk:
                image.ticket.done()
            self.activity.end()
        ended_s = time.monotonic()
        self._stats.add("fetch", items=len(chunk), get_wait_s=fetched_s - started_s)
        self._stats.add("decode", items=len(fetched), busy_s=ended_s - fetched_s)
        rows.moments.extend((Moment("fetch", started_s, fetched_s), Moment("decode", fetched_s, ended_s)))

    def _is_fetched(self, image: _Image, rows: Rows) -> bool:
        """Wait for an image's bytes and check them; put label, key and fields into their row."""
        self._begin("reading", [image])
        ticket = image.ticket
        rows.keys[image.row], rows.labels[image.row] = (
            ticket.entries.key(ticket.entry),
            ticket.entries.label[ticket.entry],
        )
        try:
            if self._origin_of is not None:
                self._set_origin(self._origin_of(image.pick.piece.shard), image, rows)
            found = ticket.wait()
            if isinstance(found, Record):
                self._read_fields(found.record, image, rows)
                found = found.image
            image.data = found
            self._check_digest(image)
            if self._dataset.columns:
                image.values = self._values_of(image)
        except DataprepError as error:
            self._skip(rows, image, error)
            return False
        return True

    def _set_origin(self, origin: Origin, image: _Image, rows: Rows) -> None:
        """Put the name of an image's dataset, and the label that it has in the mixture, into its row."""
        if DATASET_FIELD in rows.fields:
            rows.fields[DATASET_FIELD][image.row] = origin.name
        try:
            rows.labels[image.row] = origin.label_of(int(rows.labels[image.row]))
        except FormatError as error:
            raise FormatError(f"{self._where(image)}: {error}") from error

    def _read_fields(self, record: bytes, image: _Image, rows: Rows) -> None:
        if self._stored_fields is None:
            return
        try:
            values = self._stored_fields(record, image.pick.piece.shard, image.pick.sample)
        except FormatError as error:
            raise FormatError(f"{self._where(image)}: {error}") from error
        for name, value in values.items():
            rows.fields[name][image.row] = value

    def _values_of(self, image: _Image) -> list[Any]:
        try:
            return image.ticket.values()
        except FormatError as error:
            raise FormatError(f"{self._where(image)}: {error}") from error

    def _set_columns(self, images: Sequence[_Image], rows: Rows) -> None:
        """Put values into their rows, values of one size all at once."""
        places = [image.row for image in images]
        for number, (name, column) in enumerate(self._dataset.columns.items()):
            field, values = rows.fields[name], [image.values[number] for image in images]
            if isinstance(field, np.ndarray):
                joined = np.frombuffer(b"".join(values), np.dtype(column.type.dtype).newbyteorder("<"))
                field[places] = joined.reshape(-1, *column.type.lengths)
            else:
                for row, value in zip(places, values, strict=True):
                    field[row] = value

    def _check_digest(self, image: _Image) -> None:
        expected = image.ticket.entries.image_crc32c
        if not self._config.check_digests or expected is None or crc32c_of(image.data) == expected[image.ticket.entry]:
            return
        raise FormatError(
            f"{self._where(image)}: its CRC32C differs from the index; "
            'run "dataprep verify" to see what else differs, and build it again; if another tool wrote it, restore '
            'it, or index it again with "dataprep adopt --overwrite"'
        )

    def _decode(self, chunk: list[_Image], rows: Rows) -> None:
        sized = [image for image in chunk if self._has_size(image, rows)]
        if not sized:
            return
        places = [image.place for image in sized if image.place is not None]
        data = [image.data for image in sized]
        views_NV9 = np.asarray([[place.view] for place in places], np.int32) if places else self._views(sized)
        self._begin("decoding", sized)
        if places:
            starts = [place.start for place in places]
            faults = self.decoder.decode_patches(data, [place.view for place in places], rows.images, starts)
        elif self._config.is_letterboxed:
            boxes = as_views(views_NV9[:, 0])
            faults = self.decoder.decode_letterboxes(data, boxes, rows.images, [image.row for image in sized])
        else:
            faults = self.decoder.decode_views(data, views_NV9, rows.groups, [image.row for image in sized])
        self.activity.advance()
        decoded = []
        is_transformed = any(self._config.transforms)
        # The first view of each image, as Python numbers only where they are needed, because conversion takes time.
        firsts = as_views(views_NV9[:, 0]) if is_transformed or rows.views is not None else [None] * len(sized)
        for image, view, fault in zip(sized, firsts, faults, strict=True):
            if fault is not None:
                self._skip(rows, image, self._undecodable(image, fault))
                continue
            rows.mask[image.row] = True
            if view is None:
                continue
            if rows.views is not None:
                rows.views[image.row] = RowView(image.height, image.width, *view, self._config.image_size)
            decoded.append((image, view))
        if decoded and is_transformed:
            self._transform_all(decoded, rows)

    def _transform_all(self, decoded: Sequence[tuple[_Image, View]], rows: Rows) -> None:
        """Apply the transforms to decoded images, and count their time, which is part of `decode`."""
        started_s, cpu_from_s = time.monotonic(), thread_time()
        for image, first in decoded:
            self._begin("transforming", [image])
            try:
                self._transform_views(image, first, rows)
            except UsageError:
                raise  # it is not about this image
            except Exception as error:
                error.add_note(f"the transform was given {self._where(image)}")
                raise
        busy_s, cpu_s = time.monotonic() - started_s, thread_time() - cpu_from_s
        self._stats.add("transform", items=len(decoded), busy_s=busy_s, cpu_s=cpu_s)

    def _has_size(self, image: _Image, rows: Rows) -> bool:
        """Set the image's height and width from the index, or from its own header if they were not measured."""
        entries, entry = image.ticket.entries, image.ticket.entry
        image.height, image.width = height, width = int(entries.height[entry]), int(entries.width[entry])
        if height and not self._index.claims_sizes(image.pick.piece.shard):
            return True
        try:
            image.height, image.width = self.decoder.image_size(image.data)
        except DataprepError as error:
            self._skip(rows, image, self._undecodable(image, str(error)))
            return False
        if image.place is None or (image.height, image.width) == (height, width):
            return True
        fault = (
            f"{self._where(image)}: {image.height} pixels high and {image.width} wide, its record says {height} and "
            f"{width}, from which its pack was planned; make a dataset of the data with `dataprep convert`"
        )
        self._skip(rows, image, FormatError(fault))
        return False

    def _views(self, chunk: list[_Image]) -> NDArray[np.int32]:
        """Return all views of each image, shape (images, views, 9)."""
        config, positions = self._config, [image.pick.position for image in chunk]
        if config.is_letterboxed:
            sizes = [(image.height, image.width) for image in chunk]
            flip = config.flip if config.augment else 0.0
            views = letterbox_views(config.seed, positions, sizes, size=config.image_size, flip=flip)
            return np.asarray(views, np.int32)[:, None]
        if not config.augment:
            size, resize = config.image_size, config.short_side
            views = [evaluation_view(image.height, image.width, size=size, resize=resize) for image in chunk]
            return np.asarray(views, np.int32)[:, None]
        return grouped_views(
            config.seed,
            positions,
            [image.height for image in chunk],
            [image.width for image in chunk],
            config.crop_groups,
        )

    def _transform_views(self, image: _Image, first: View, rows: Rows) -> None:
        """Let the transforms change an image's views in place, each with its own generator."""
        for view, transform in enumerate(self._config.transforms):
            if transform is None:
                continue
            change = partial(self._transform, transform, image.pick.position, view)
            if image.place is not None:
                transform_patches(change, rows.images, image.place)
            elif isinstance(transform, FieldsTransform) and not self._config.view_groups:
                self._transform_fields(transform, image, first, rows)
            else:
                change(images_of_row(rows.groups, image.row)[view])

    def _transform(self, transform: Transform, position: int, view: int, image_HWC: NDArray[np.uint8]) -> None:
        _replace(image_HWC, transform(image_HWC, transform_generator(self._config.seed, position, view)))

    def _transform_fields(self, transform: FieldsTransform, image: _Image, view: View, rows: Rows) -> None:
        """Change an image and fields of its sample; fields that the transform cannot use are an error in the image."""
        image_HWC, values = rows.images[image.row], {name: rows.fields[name] for name in transform.needed_fields}
        given = {name: column[image.row] for name, column in values.items()}
        seen = RowView(image.height, image.width, *view, self._config.image_size)
        generator = transform_generator(self._config.seed, image.pick.position)
        try:
            result, changed = transform.transform_fields(image_HWC, given, seen, generator)
        except FormatError as error:
            rows.mask[image.row] = False
            if rows.views is not None:
                rows.views[image.row] = None
            self._skip(rows, image, FormatError(f"{self._where(image)}: {error}"))
            return
        _replace(image_HWC, result)
        if not changed.keys() <= values.keys():
            raise UsageError(f"transform returned the fields {', '.join(changed)}, expected only those that it needs")
        for name, value in changed.items():
            values[name][image.row] = value

    def _skip(self, rows: Rows, image: _Image, error: DataprepError) -> None:
        """Leave a row masked and count the reason, or raise the error; always raise it if the fault is not the image's
        but the storage's, such as a disk that is gone. Raises StorageError if the loader was closed."""
        if self._closed:
            raise StorageError(CLOSED)
        if self._config.on_error == "raise" or not isinstance(error, FormatError | ImageError):
            raise error
        rows.skipped[type(error).__name__] += 1
        rows.labels[image.row] = NO_LABEL

    def _undecodable(self, image: _Image, fault: str) -> FormatError:
        return FormatError(
            f"{self._where(image)}: cannot be decoded: {fault}; set `on_error` to skip, which leaves it out"
        )

    def _begin(self, what: str, images: Sequence[_Image]) -> None:
        """Note the calling thread's activity. Raises StorageError if the loader was closed."""
        if self._closed:
            raise StorageError(CLOSED)
        self.activity.advance()
        self.activity.begin(lambda: f"{what} {some([self._where(image) for image in images])}")

    def _planning(self, picks: Sequence[tuple[int, Pick]]) -> str:
        shards = dict.fromkeys(pick.piece.shard for _, pick in picks)
        files = dict.fromkeys(self._dataset.url_of(shard, self._index.shard_file(shard)) for shard in shards)
        return f"waiting for index or memory to read {some(list(files))}"

    def _where(self, image: _Image) -> str:
        ticket, shard = image.ticket, image.pick.piece.shard
        file = self._index.file_of(shard, ticket.entries, ticket.entry)
        return f"{self._dataset.url_of(shard, file)}: {named(ticket.entries.key(ticket.entry))}"


def _replace(image_HWC: NDArray[np.uint8], result: NDArray[np.uint8]) -> None:
    """Replace an image by a transform's result."""
    result = np.asarray(result)
    if result.shape != image_HWC.shape or result.dtype != np.uint8:
        found = f"transform gave {result.dtype} of shape {result.shape}, expected uint8 of {image_HWC.shape}"
        is_float = np.issubdtype(result.dtype, np.floating)
        raise FormatError(f"{found}; normalise on the device: loaders.torch.normalize" if is_float else found)
    image_HWC[...] = result
