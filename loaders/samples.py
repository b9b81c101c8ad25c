"""Random access to samples: element i is the sample at position i of the loader's order, or of the stored order.

    samples = Samples.open("gs://bucket/imagenet", images="encoded")
    samples[7]                      # one ranged read
    samples.__getitems__([7, 8, 9]) # up to 256 reads in flight at once

For pipelines that other libraries drive: PyTorch's DataLoader, Grain. Any thread may read, and copies in other
processes open what they need themselves. `Steps` yields the positions of a rank's batches, and has their state.
Shapes: HWC, uint8, 0..255.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from operator import index as whole_number
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, Self, TypeAlias, TypedDict, Unpack, get_args

from dataprep.arrays import NDArray, np
from dataprep.errors import UsageError
from dataprep.messages import not_one_of
from loaders.config import LoaderConfig, LoaderSettings
from loaders.dataset import Dataset, PlainData, open_dataset
from loaders.decode.seeding import end_if_worker
from loaders.engine.batch import LoaderState
from loaders.engine.pipeline import Pipeline, Rows, empty_rows, finish
from loaders.engine.stats import Stats
from loaders.loader import Loader, config_of, end_when_collected
from loaders.order import Lookup, Pick, Piece

if TYPE_CHECKING:
    from loaders.decode.crop import RowView
    from loaders.fetch.index import SplitIndex

Images: TypeAlias = Literal["decoded", "encoded"]
PADDING = -1
"""Index of a row that holds no sample: the last batch of an evaluation is filled up with it."""
MAX_AT_ONCE = 256
"""Maximum number of samples that are requested at once; a longer list is read in parts, to bound the memory."""
_OF_PIXELS = (
    *("image_size", "interpolation", "augment", "scale", "ratio", "flip", "clip_crop", "resize"),
    *("views", "transform", "decoder"),
)
"""Settings of decoding, which encoded images do not take."""
_OF_BATCHES = (
    *("batch_size", "rank", "world_size", "processes", "prefetch_batches", "stall_s", "packs", "view_groups"),
    *("metrics_port", "metrics_address"),
)
"""Settings of batches, which single samples do not take."""


class Sample(TypedDict):
    """One sample."""

    image: NDArray[np.uint8] | bytes
    """HWC pixels, or the bytes of the stored file with `images="encoded"`."""
    label: int
    """-1 if the image has no label."""
    key: str
    mask: bool
    """False if there is no sample: padding, or an image that `on_error="skip"` left out."""
    fields: NotRequired[Mapping[str, object]]
    """Values of the fields that the setting `fields` names."""
    view: NotRequired[RowView | None]
    """Crop, scale and flip of the image, with the setting `views`."""


class Samples:
    """Samples of one split by position; picklable. `Samples.open` makes one.

    With `shuffle` an index is a global position of the loader's order, which continues over all epochs, and the crop is
    the loader's at that position. Without, it is the number of the sample in the stored order.
    """

    def __init__(self, dataset: Dataset, config: LoaderConfig, images: Images, epochs: int | None) -> None:
        self._dataset, self.config, self._images, self._epochs = dataset, config, images, epochs
        self._opened: dict[int, Opened] = {}
        """Opened resources by process number; a forked process must not use its parent's."""
        loader = Loader(dataset, config)
        self._index: dict[int, SplitIndex] = {os.getpid(): loader.index}
        """Index that the process of this number has opened."""
        order, sequence = loader.order, loader.state_dict()["sequence"]
        self._stored, self._epoch_samples = order.num_samples, order.epoch_samples
        is_endless = config.shuffle and epochs is None
        self._length = sys.maxsize if is_endless else (epochs or 1) * order.epoch_samples
        left_out = ("batch_size", "pixels", *(_OF_PIXELS if images == "encoded" else ()))
        found = {name: value for name, value in sequence.items() if name not in left_out}
        found |= {"images": images, "fields": list(config.fields), "length": self._length}
        self._text = f"{type(self).__name__}({json.dumps(found, sort_keys=True)})"

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        split: str = "train",
        *,
        images: Images = "decoded",
        epochs: int | None = None,
        **settings: Unpack[LoaderSettings],
    ) -> Self:
        """Open the samples of a split.

        Args:
            url: Folder or URL of a dataset, or of plain data such as pictures or tars, which are indexed first.
            split: Name of a split.
            images: `decoded` crops and decodes as the loader does; `encoded` delivers the bytes of the stored files.
            epochs: Number of epochs that the length counts, in the loader's order; by default there is no end, and for
                PyTorch's samplers one epoch.
            settings: Settings of `open_loader`, except for batches. By default only the split `train` is shuffled, and
                what is shuffled is augmented.

        Raises:
            UsageError: There is no such dataset, split or setting, or a value is of another type or out of its range.
        """
        if not isinstance(url, str | os.PathLike):
            raise UsageError(f"url must be a folder or URL of one dataset, got {url!r}")
        end_if_worker()
        _check_use(images, settings)
        config = config_of(url, split, settings, 1)
        if epochs is not None and (not isinstance(epochs, int) or epochs < 1 or not config.shuffle):
            raise UsageError(f"epochs must be None, or 1 or more of shuffled data, got {epochs!r}")
        plain = PlainData(config.index, fields=config.fields)
        dataset = open_dataset(str(url), split, config.region_policy, deadline_s=config.deadline_s, plain=plain)
        return cls(dataset, config, images, epochs)

    def __len__(self) -> int:
        """Return the number of positions; without a last epoch, the largest length that Python allows."""
        return self._length

    def __getitem__(self, index: int) -> Sample:
        """Return one sample.

        Raises:
            IndexError: There is no such position.
            DataprepError: The sample cannot be read or decoded, and `on_error` is not `skip`.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return samples, in the order of the indices; up to 256 are read at once."""
        found = self._open()
        numbers = [self._checked(index) for index in indices]
        return [
            sample
            for first in range(0, len(numbers), MAX_AT_ONCE)
            for sample in found.read([self._asked(found, each) for each in numbers[first : first + MAX_AT_ONCE]])
        ]

    def __repr__(self) -> str:
        """Return everything that the samples depend on, except the URL: a copy elsewhere has the same text."""
        return self._text

    def loader(self, batch_size: int, rank: int = 0, world_size: int = 1) -> Loader:
        """Return a loader whose batches are these samples; it reads only the index until it is iterated over."""
        config = replace(self.config, batch_size=batch_size, rank=rank, world_size=world_size)
        return Loader(replace(self._dataset), config, self._index.get(os.getpid()))

    def close(self) -> None:
        """End the threads of this process; samples that are used again start new ones."""
        found = self._opened.pop(os.getpid(), None)
        if found is not None:
            found.pipeline.close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": {}, "_index": {}}

    def _asked(self, found: Opened, index: int) -> Asked | None:
        """Return the sample that an index asks for; None for padding."""
        return None if index == PADDING else Asked(index, found.place(index))

    def _checked(self, index: int) -> int:
        number, stop = index if isinstance(index, int) else whole_number(index), self._stop_of(index)
        if not PADDING <= number < stop:
            raise IndexError(f"sample {number:,}, expected 0 to {stop - 1:,}, or {PADDING} for padding")
        return number

    def _stop_of(self, index: int) -> int:
        """Return the end of the range of valid indices."""
        return self._length

    def _open(self) -> Opened:
        """Return this process's opened split; if two threads open it at the same time, one closes its own."""
        found = self._opened.get(os.getpid())
        if found is None:
            mine = Opened(self.loader(1), self._images)
            found = self._opened.setdefault(os.getpid(), mine)
            if found is mine:
                end_when_collected(self, mine.pipeline.close)
            else:
                mine.pipeline.close()
        return found


def _check_use(images: Any, settings: Iterable[str]) -> None:
    """Raise UsageError for settings that would have no effect."""
    if images not in get_args(Images):
        raise UsageError(not_one_of("images", images, get_args(Images)))
    if wrong := [name for name in settings if name in _OF_BATCHES]:
        raise UsageError(
            f"{', '.join(wrong)}: not a setting of single samples; leave it out, and give batch size and rank to the "
            "code that makes batches"
        )
    if images == "encoded" and (wrong := [name for name in settings if name in _OF_PIXELS]):
        raise UsageError(f"{', '.join(wrong)}: not a setting of encoded images; leave it out, or set images='decoded'")


class Asked(NamedTuple):
    """A requested sample."""

    position: int
    """Key of its random draws."""
    place: tuple[int, int]
    """Shard, and number of the sample in it."""


class Opened:
    """A split that one process reads."""

    def __init__(self, loader: Loader, images: Images) -> None:
        self._config, self._index, self._images = loader.config, loader.index, images
        self._columns = loader.dataset.columns
        kind = Pipeline if images == "decoded" else _EncodedPipeline
        self.pipeline = kind(loader.dataset, loader.index, loader.config, Stats())
        self._stops = list(accumulate(loader.order.shard_samples))
        self._lookup = Lookup(loader.order) if loader.config.shuffle else None
        self._joins = not (loader.dataset.storage.is_local or loader.index.one_file_per_image)
        self._submitting = threading.Lock()
        self._calls = count()

    def read(self, asked: list[Asked | None]) -> list[Sample]:
        """Return samples; None asks for a row without one."""
        decoded = self._images == "decoded"
        size = self._config.image_size if decoded else 0
        images = np.empty((len(asked), size, size, 3), np.uint8)
        rows = empty_rows(images, self._config, self._columns, len(asked))
        if not decoded:
            rows = _EncodedRows(rows.images, rows.labels, rows.mask, rows.keys, rows.fields, encoded=[b""] * len(asked))
        picks = self._picks(asked)
        if len(picks) == 1:  # handing a single one over to another thread takes as long as reading it
            self.pipeline.fill(*picks[0], rows, self._submitting)
        else:
            with self._submitting:  # a pipeline takes picks from one thread at a time
                futures = self.pipeline.submit(picks, rows)
            for future in futures:
                future.result()
        finish(rows)
        return [self._sample(rows, row) for row in range(len(asked))]

    def _picks(self, asked: list[Asked | None]) -> list[tuple[int, Pick]]:
        """Return the pick of each row that holds a sample."""
        rows = [(row, each) for row, each in enumerate(asked) if each is not None]
        pieces = self._pieces({each.place for _, each in rows})
        counts = Counter(pieces[each.place] for _, each in rows)
        return [
            (row, Pick(each.position, pieces[each.place], each.place[1], counts[pieces[each.place]]))
            for row, each in rows
        ]

    def place(self, number: int) -> tuple[int, int]:
        """Return the shard of an index, and the sample in it."""
        if self._lookup is None:
            return self.stored(number)
        found = self._lookup.at(number)
        return found.piece.shard, found.sample

    def stored(self, number: int) -> tuple[int, int]:
        """Return the shard of the sample of this number in the stored order, and its number there."""
        shard = bisect_right(self._stops, number)
        return shard, number - (self._stops[shard - 1] if shard else 0)

    def _pieces(self, places: set[tuple[int, int]]) -> dict[tuple[int, int], Piece]:
        """Return the piece that each sample is read with: from a bucket, neighbours in a shard are read at once.

        A piece's pass is the number of the call, so that two calls never share the bytes of one piece: the
        fetcher frees them after as many samples as the call asks for.
        """
        call, pieces = next(self._calls), dict[tuple[int, int], Piece]()
        run: list[tuple[int, int]] = []
        for place in sorted(places):
            if run and not self._is_joined(run[0], run[-1], place):
                pieces |= dict.fromkeys(run, Piece(run[0][0], run[0][1], run[-1][1] + 1, call))
                run = []
            run.append(place)
        return pieces | (dict.fromkeys(run, Piece(run[0][0], run[0][1], run[-1][1] + 1, call)) if run else {})

    def _is_joined(self, first: tuple[int, int], last: tuple[int, int], place: tuple[int, int]) -> bool:
        """Whether a sample is read together with a run of samples before it."""
        if not self._joins or place != (last[0], last[1] + 1):
            return False
        entries, begin = self._index.find(Piece(place[0], first[1], place[1] + 1, 0))
        end = begin + place[1] - first[1]
        stop = entries.record_offset[end] + entries.record_bytes[end]
        return bool(stop - entries.record_offset[begin] <= self._config.block_bytes)

    def _sample(self, rows: Rows, row: int) -> Sample:
        sample = Sample(
            image=rows.encoded[row] if isinstance(rows, _EncodedRows) else rows.images[row],
            label=int(rows.labels[row]),
            key=rows.keys[row],
            mask=bool(rows.mask[row]),
        )
        if self._config.fields:
            sample["fields"] = {name: values[row] for name, values in rows.fields.items()}
        if rows.views is not None:
            sample["view"] = rows.views[row]
        return sample


@dataclass(slots=True)
class _EncodedRows(Rows):
    """Rows that also hold the bytes of images."""

    encoded: list[bytes] = field(default_factory=list)


class _EncodedPipeline(Pipeline):
    """A pipeline that ends before decoding."""

    def _decode(self, chunk: list[Any], rows: Rows) -> None:
        if isinstance(rows, _EncodedRows):
            for image in chunk:
                rows.encoded[image.row] = image.data
                rows.mask[image.row] = True


class Steps:
    """Batches of positions, one epoch at a time: the batch sampler of a rank.

        steps = Steps(samples, batch_size=256, rank=0, world_size=4)
        for positions in steps:         # one epoch; the next `for` takes the next epoch
            batch = samples.__getitems__(positions)

    The states are the same as a loader's with the same settings, so either continues where the other stopped. An
    evaluation begins again with each `for` except the first one after `load_state_dict`; its last batch is filled up
    with `PADDING`, so that all ranks take the same number of steps.

    Args:
        samples: The samples to choose from.
        batch_size: Number of samples in one step, over all ranks.
        rank: Rank from 0 to `world_size` - 1.
        world_size: Number of ranks; must divide the batch size.

    Raises:
        UsageError: There is no such rank, or the number of ranks does not divide the batch.
    """

    def __init__(self, samples: Samples, *, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self._loader: Loader = samples.loader(batch_size, rank, world_size)
        self._step = 0
        """Number of the next step, counted over all epochs."""
        self._start = 0
        """Step with which the next iteration of an evaluation starts."""

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next step belongs to."""
        loader = self._loader
        return loader.order.epoch_of(self._step) if loader.config.shuffle else 0

    def __len__(self) -> int:
        """Return the number of steps in every epoch, as for `loaders.torch.TorchBatches`."""
        return self._loader.order.equal_steps

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the positions of every step in the rest of the epoch."""
        if not self._loader.config.shuffle:  # here, for the same reason as in the loader
            self._step, self._start = self._start, 0
        return self._taken()

    def _taken(self) -> Iterator[list[int]]:
        order, config = self._loader.order, self._loader.config
        stop = order.first_equal_batch(self._step // len(self) + 1) if config.shuffle else len(self)
        while self._step < stop:
            positions = self._loader.positions(self._step)
            self._step += 1
            self._start = 0
            yield [each if config.shuffle or each < order.num_samples else PADDING for each in positions]
        if not config.shuffle:
            self._step = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the first step of an epoch."""
        if self._loader.config.shuffle:
            self._step = self._loader.order_from(epoch).first_equal_batch(epoch)

    def state_dict(self) -> LoaderState:
        """Return the state after the last step that was taken."""
        return {
            **self._loader.state_dict(),
            "position": self._loader.order.batch_start(self._step),
            "epoch": self.epoch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume after the saved step. The state may come from a run with a different number of ranks.

        Raises:
            UsageError: The state was saved for a different sample sequence; the message says what differs. Runs over
                single samples cannot continue after a change of the dataset.
        """
        self._loader.load_state_dict(state)
        if self._loader.order.earlier:
            raise UsageError(
                f"{self._loader.dataset.data_url}: the state's run continues with another revision or view, which "
                "only the batches of open_loader can; continue with them, or begin a new run without the state"
            )
        self._step = self._start = self._loader.order.batch_at(self._loader.state_dict()["position"])
