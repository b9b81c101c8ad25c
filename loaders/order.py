"""Sample at each position: a pure function of the seed and the global position, for any number of ranks.

    G = 0, 1, 2, …            global position, which grows over all epochs
    q = G // N, p = G % N     pass and position in it; N samples are stored, an epoch has `passes` passes
    blocks                    c consecutive samples of one shard, one range of its file; every pass permutes them again
    K streams                 position p is the next sample of stream p % K; each owns its part of the permuted blocks
    windows                   w pieces of a stream at a time, whose samples are sorted by random words
    batch g                   positions [g*B, (g+1)*B); rank r of W takes those with G % W == r; after a change of B
                              at position P, batches and ranks are counted from there
    laps                      a pass is one lap of all shards; where some shards were known first, pass 0 is several
    continued                 after a change of the dataset or view, first a lap for what is left of each pass

So the set of every batch is the same for every W, and if W divides K, a rank reads each byte of its blocks once a pass.
Evaluation takes every sample once, in the stored order. Rows inside a batch depend on W, so random draws for a sample
must be keyed by G.

The planner is `_LapLayout`, which permutes the blocks of a lap and cuts them among the streams, and `_Stream`, which
mixes the samples of a few windows at a time. A piece is a block, or the part of one that a stream owns: if a stream
ends inside a block, the next stream begins with the rest of it.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from numbers import Integral
from typing import NamedTuple

from dataprep.arrays import NDArray, np
from dataprep.dataset.randomness import permutation, philox_words
from dataprep.errors import UsageError
from dataprep.messages import counted

NUM_STREAMS = 192
"""Number of streams; with 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64 or 96 ranks every stream belongs to one rank."""
WINDOW = 2
"""Number of successive pieces of a stream whose samples are mixed with each other."""
BLOCK_BYTES = 2 * 2**20
"""Size of one read from a bucket: below this, requests cost as much time as bytes."""
HEDGED_SHARE = 1 / 32
"""Share of the prefetch budget reserved for hedged (duplicate) reads."""
_PLANNED_SAMPLES = 256
"""Number of samples of a stream that are planned at once: a NumPy call costs as much as a hundred samples."""
_BLOCKS_AT_ONCE = 2**16
"""Number of blocks whose samples are counted at once."""
_KEPT_LAPS = 2
"""Number of laps whose plans a lookup keeps: readers that run ahead are already in the next one."""
_NAMED_DIVISORS = 8
"""Maximum number of possible counts of ranks in a message."""
_BLOCKS_PER_HELD = 16
"""Minimum ratio of the blocks in a pass to the blocks held at once; a smaller dataset gets smaller blocks."""


class Piece(NamedTuple):
    """Consecutive samples of one shard that are read at once: a block, or the part of one that a stream owns."""

    shard: int
    first: int
    stop: int
    this_pass: int
    """Number of the pass, because at the seam of two passes a rank may hold the same samples for both."""


class Pick(NamedTuple):
    """One sample to deliver."""

    position: int
    """Global position, G."""
    piece: Piece
    sample: int
    """Number of the sample in the piece's shard."""
    of_piece: int
    """Number of samples that this rank picks from the piece, from its start position on; then its bytes are freed."""
    released: tuple[Pick, ...] = ()
    """In a mixture: samples counted in `of_piece` of their pieces that another rank takes instead of this one."""


class Lap(NamedTuple):
    """Positions that are planned as a whole: a pass, the part of pass 0 over shards that were known first, or what an
    earlier order left of a pass."""

    first: int
    """First global position."""
    stop: int
    first_shard: int
    stop_shard: int
    this_pass: int
    purpose: str
    """Prefix of the purposes of its random draws."""
    members: bytes | None = None
    """A bit for each sample of all shards, the lowest of a byte first: whether it is in the lap; None: all are."""


class Batches(NamedTuple):
    """Batches of one size, from one of them on."""

    number: int
    """Number of the first one."""
    position: int
    """First position of that one."""
    size: int


def ramped(first: Batches, sizes: Sequence[tuple[int, int]]) -> tuple[Batches, ...]:
    """Return batches, and those of other sizes that follow them. `sizes` are ascending positions, each with the size of
    all batches that begin there or later."""
    found = [first]
    for position, size in sizes:
        number, start, before = found[-1]
        steps = max(0, -(-(position - start) // before))  # none where a batch reaches beyond the position
        found.append(Batches(number + steps, start + steps * before, size))
    return tuple(found)


class Epochs(NamedTuple):
    """Epochs of one length, from one of them on."""

    first: int
    """Number of the first one."""
    start: int
    """First position of that one."""
    samples: int
    """Positions in each."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Everything that the sequence of samples depends on.

    Raises:
        UsageError: A number is out of range, or there is no sample.
    """

    shard_samples: tuple[int, ...]
    """Number of samples in each shard, in the order of the shards."""
    seed: int
    global_batch: int
    """B: samples in one step, over all ranks."""
    resized: tuple[Batches, ...] = ()
    """Batches of each size, if a run continued with other sizes or has a ramp; () if all batches from position 0 on
    have `global_batch` samples."""
    samples_per_block: int
    """c: maximum number of samples in a block."""
    passes: int = 1
    """Passes over the stored samples in one epoch."""
    num_streams: int = NUM_STREAMS
    """K: number of streams that share the blocks of a pass."""
    window: int = WINDOW
    """w: number of successive pieces of a stream whose samples are mixed with each other."""
    heads: tuple[int, ...] = ()
    """Ascending numbers of shards that were known first: pass 0 takes the first `heads[0]` shards before any other,
    then those up to `heads[1]`, and so on. So it begins in the same way whether or not the others are known."""
    earlier: tuple[Epochs, ...] = ()
    """Epochs of the orders that this one continues; see `continued`."""
    left: tuple[Lap, ...] = ()
    """Remaining laps of the epoch that the last of them began."""
    first_epoch: int = 0
    """First epoch of all samples."""
    start: int = 0
    """First position of this epoch."""

    def __post_init__(self) -> None:
        for name in ("global_batch", "samples_per_block", "passes", "num_streams", "window"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if any(samples < 0 for samples in self.shard_samples) or not self.num_samples:
            shards = counted(len(self.shard_samples), "shard")
            raise UsageError(f"no sample to load: {shards} of 0 samples; expected 1 or more")
        bounds = (0, *self.heads, len(self.shard_samples) + 1)
        if any(first >= stop for first, stop in pairwise(bounds)):
            raise UsageError(f"heads must ascend from 1 to {len(self.shard_samples):,} shards, got {self.heads}")

    @property
    def num_samples(self) -> int:
        """N: number of stored samples."""
        return sum(self.shard_samples)

    @property
    def epoch_samples(self) -> int:
        """Number of positions in an epoch."""
        return self.passes * self.num_samples

    @property
    def end(self) -> int | None:
        """Number of positions until the samples end; None if they never end. Only mixtures can end."""
        return None

    @property
    def all_epochs(self) -> tuple[Epochs, ...]:
        """Epochs of this order and of those that it continues, the earliest first."""
        return *self.earlier, Epochs(self.first_epoch, self.start, self.epoch_samples)

    def lap_at(self, position: int) -> Lap:
        """Return the lap that a global position belongs to. Raises UsageError if the position is before the first one
        of an order that continues another."""
        if position < self.start:
            for lap in self.left:
                if lap.first <= position < lap.stop:
                    return lap
            raise UsageError(f"position {position:,} belongs to an earlier revision or view of the dataset")
        samples, shards = self.num_samples, len(self.shard_samples)
        passes, in_pass = divmod(position - self.start, samples)
        this_pass = self.first_epoch * self.passes + passes
        if not self.heads or this_pass:
            first = position - in_pass
            return Lap(first, first + samples, 0, shards, this_pass, "load")
        stops = list(accumulate(self.shard_samples))
        cuts = [0, *(stops[head - 1] for head in self.heads), samples]
        number = bisect_right(cuts, in_pass) - 1
        first_shard, stop_shard = (0, *self.heads, shards)[number : number + 2]
        purpose = "load" if number == len(self.heads) else f"load/head/{number}"
        return Lap(cuts[number], cuts[number + 1], first_shard, stop_shard, 0, purpose)

    @property
    def batches(self) -> tuple[Batches, ...]:
        """Batches of each size, the earliest first."""
        return self.resized or (Batches(0, 0, self.global_batch),)

    def batches_with(self, batch: int) -> Batches:
        """Return the batches with the size of a batch; for an earlier batch, the batches of the first size."""
        return next((each for each in reversed(self.batches) if batch >= each.number), self.batches[0])

    def batch_start(self, batch: int) -> int:
        """Return the first position of a batch."""
        number, position, size = self.batches_with(batch)
        return position + (batch - number) * size

    def batch_at(self, position: int) -> int:
        """Return the number of the batch that holds a global position."""
        found = next((each for each in reversed(self.batches) if position >= each.position), self.batches[0])
        return found.number + (position - found.position) // found.size

    def first_batch(self, epoch: int) -> int:
        """Return the number of an epoch's first batch; batches run on across epochs, and nothing is dropped. Raises
        UsageError if there is no such epoch."""
        return self.batch_at(self.first_position(epoch))

    def first_position(self, epoch: int) -> int:
        """Return an epoch's first position. Raises UsageError if there is no such epoch."""
        epochs = self._epochs_of(epoch)
        return epochs.start + (epoch - epochs.first) * epochs.samples

    def _epochs_of(self, epoch: int) -> Epochs:
        return next(each for each in reversed(self.all_epochs) if _checked(epoch) >= each.first)

    def steps(self, epoch: int) -> int:
        """Return the number of batches in an epoch, which may differ by one from epoch to epoch."""
        return self.first_batch(epoch + 1) - self.first_batch(epoch)

    @property
    def equal_steps(self) -> int:
        """Number of batches that hold an epoch, for tools whose epochs must all have the same number of batches."""
        return -(-self.epoch_samples // self.global_batch)

    def first_equal_batch(self, epoch: int) -> int:
        """Return the number of an epoch's first batch if each epoch has `equal_steps` batches. Raises UsageError if
        there is no such epoch."""
        first, start, steps = self._in_batches(self._epochs_of(epoch))
        return start + (epoch - first) * steps

    def equal_epoch_of(self, batch: int) -> int:
        """Return the epoch that a batch belongs to if each epoch has `equal_steps` batches."""
        last = self.batches[-1].position
        epochs = reversed(self.all_epochs)
        found = next(each for each in epochs if each.start <= last or batch >= self._in_batches(each)[1])
        first, start, steps = self._in_batches(found)
        return first + (batch - start) // steps

    def _in_batches(self, epochs: Epochs) -> tuple[int, int, int]:
        """Return the first of some epochs that begins with batches of the last size, its first batch, and the number of
        batches of each epoch, if all have the same number."""
        number, position, size = self.batches[-1]
        before = max(0, -(-(position - epochs.start) // epochs.samples))
        start = number - (position - epochs.start - before * epochs.samples) // size
        return epochs.first + before, start, -(-epochs.samples // size)

    def epoch_of(self, batch: int) -> int:
        """Return the epoch that a batch belongs to."""
        return self.epoch_at(self.batch_start(batch + 1) - 1)

    def epoch_at(self, position: int) -> int:
        """Return the epoch that a global position belongs to."""
        epochs = self._epochs_with(position)
        return epochs.first + (position - epochs.start) // epochs.samples

    def epochs_done(self, position: int) -> float:
        """Return the number of epochs before a global position, with its fraction."""
        epochs = self._epochs_with(position)
        return epochs.first + (position - epochs.start) / epochs.samples

    def _epochs_with(self, position: int) -> Epochs:
        return next(each for each in reversed(self.all_epochs) if position >= each.start)

    def laps_left(self, position: int) -> list[Lap]:
        """Return the laps that an epoch still has at a position: none at the beginning of one, else the lap that the
        position is in and those after it."""
        stop = self.start
        if position >= stop:
            stop = position + (self.start - position) % self.epoch_samples
        laps: list[Lap] = []
        while position < stop:
            laps.append(self.lap_at(position))
            position = laps[-1].stop
        return laps

    def picks(self, batch: int, *, rank: int = 0, world_size: int = 1) -> Iterator[Pick]:
        """Yield one rank's samples from a batch on, without end.

        Args:
            batch: Number of the first batch, counted from 0 over all epochs.
            rank: Rank from 0 to `world_size` - 1.
            world_size: W, a divisor of the global batch.

        Raises:
            UsageError: There is no such rank, or the number of ranks does not divide the batch.
        """
        check_world(self.global_batch, rank, world_size)
        return self.every(world_size, self.batch_start(batch) + rank)

    def every(self, world_size: int, position: int) -> Iterator[Pick]:
        """Yield the samples at a position and at every `world_size`-th position after it, without end."""
        num_streams = self.num_streams
        while True:
            lap = self.lap_at(position)
            layout = _LapLayout(self, lap)
            streams: dict[int, _Stream] = {}
            for position in range(position, lap.stop, world_size):  # noqa: B020  keeps the last position
                turn, number = divmod(position - lap.first, num_streams)
                stream = streams.get(number)
                if stream is None:
                    share = _Share(turn, (position - lap.first) % world_size, world_size)
                    stream = streams[number] = _Stream(layout, number, share)
                yield Pick(position, *stream.at(turn))
            position += world_size


class Lookup:
    """Finds the samples of single positions, each as its own piece; safe in many threads.

    A lookup keeps the blocks of two laps in memory, and the plans of some windows of every requested stream, so it is
    fast if positions roughly ascend.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lock = threading.Lock()
        self._layouts: dict[int, _LapLayout] = {}
        """Layouts by the first positions of their laps."""
        self._streams: dict[tuple[int, int], list[_Stream]] = {}
        """Planned parts of streams by first position of the lap and number, the latest last."""

    def at(self, position: int) -> Pick:
        """Return the sample at a position; a position far from the last ones takes as long as a few hundred samples."""
        lap = self._order.lap_at(position)
        turn, number = divmod(position - lap.first, self._order.num_streams)
        with self._lock:
            parts = self._streams.setdefault((lap.first, number), [])
            found = next((part for part in reversed(parts) if part.is_planned(turn)), None)
            if found is None:
                found = _Stream(self._layout(lap), number, _Share(turn, 0, 1))
                self._streams[lap.first, number] = [*parts[-1:], found]
            piece, sample, _ = found.at(turn)
        return Pick(position, Piece(piece.shard, sample, sample + 1, lap.this_pass), sample, 1)

    def _layout(self, lap: Lap) -> _LapLayout:
        """Return the layout of a lap; if a third one is needed, the oldest lap's plans are dropped."""
        if lap.first not in self._layouts:
            self._layouts[lap.first] = _LapLayout(self._order, lap)
            for oldest in list(self._layouts)[:-_KEPT_LAPS]:
                del self._layouts[oldest]
                self._streams = {key: parts for key, parts in self._streams.items() if key[0] != oldest}
        return self._layouts[lap.first]


def _checked(epoch: int) -> int:
    """Return the number of an epoch, or raise UsageError if there is no such epoch."""
    if not isinstance(epoch, Integral) or epoch < 0:
        raise UsageError(f"epoch must be a whole number, 0 or more, got {epoch!r}")
    return epoch


def check_world(global_batch: int, rank: int, world_size: int) -> None:
    """Raise UsageError if a batch cannot be shared among the ranks."""
    if not 0 <= rank < world_size:
        raise UsageError(f"rank must be 0 to {world_size - 1} in a world of {world_size}, got {rank}")
    if global_batch % world_size:
        raise UsageError(
            f"a batch of {global_batch} cannot be shared by {world_size} ranks; give "
            f"{_ranks_that_share(global_batch, world_size)}, or a batch_size that {world_size} divides "
            "(a saved state continues with either)"
        )


def _ranks_that_share(global_batch: int, world_size: int) -> str:
    """Return the numbers of ranks that divide a batch, `1, 2 or 4 ranks`: the nearest ones to `world_size`."""
    divisors = [each for each in range(1, global_batch + 1) if global_batch % each == 0]
    *first, last = sorted(sorted(divisors, key=lambda each: abs(each - world_size))[:_NAMED_DIVISORS])
    return f"{', '.join(map(str, first))} or {last} ranks" if first else counted(last, "rank")


def samples_per_block(
    num_samples: int,
    mean_image_bytes: float,
    *,
    block_bytes: int = BLOCK_BYTES,
    num_streams: int = NUM_STREAMS,
    window: int = WINDOW,
) -> int:
    """Return c: the samples that fill a block, or fewer if the dataset is too small for such blocks to mix well."""
    most = max(1, num_samples // (_BLOCKS_PER_HELD * num_streams * window))
    return max(1, min(int(block_bytes // max(1.0, mean_image_bytes)), most))


def stored_picks(
    shard_samples: Sequence[int], *, first: int = 0, step: int = 1, samples_per_block: int = 1
) -> Iterator[Pick]:
    """Yield the samples in the stored order: at position `first` and at every `step`-th position after it, to the end.
    With a step of 1 up to `samples_per_block` are read at once; otherwise other ranks have a share of every block."""
    at_once = samples_per_block if step == 1 else 1
    before = 0
    for shard, samples in enumerate(shard_samples):
        start = max(first - before, (first - before) % step)
        for sample in range(start, samples, step):
            block = sample - sample % at_once
            piece = Piece(shard, block, min(block + at_once, samples), 0)
            yield Pick(before + sample, piece, sample, piece.stop - max(piece.first, start))
        before += samples


def continued(before: Order, position: int, order: Order, numbers: Callable[[int], NDArray[np.int64]]) -> Order:
    """Return the order of a dataset or view that takes over from another one, in the middle of an epoch or not.

    First comes what is left of the epoch, each sample once and permuted again; then epochs of all samples. An epoch
    without any delivered sample begins with all samples.

    Memory: a bit a sample, and as much as a pass of the order while the rest of the epoch lasts; 400 million samples in
    blocks of 70 take 96 MB. Only the windows that the position cuts are planned, not the positions before it.

    Args:
        before: Order of all positions before.
        position: First position that it has not delivered.
        order: Order of what is loaded from there on, as if it were the first one.
        numbers: Returns for a shard of `before` the numbers that its samples have in the same shard of `order`, -1
            where a sample is not in it, shape (samples,).
    """
    laps = before.laps_left(position)
    passes = list(dict.fromkeys(lap.this_pass for lap in laps))
    # All passes of an epoch after the one that the position cuts have the same samples.
    sets = [[_Left(before, lap, position) for lap in laps if lap.this_pass == each] for each in passes[:2]]
    packed = [_Packed() for _ in sets]
    for shard, samples in enumerate(order.shard_samples):
        places = numbers(shard) if shard < len(before.shard_samples) else np.empty(0, np.int64)
        for members, lefts in zip(packed, sets, strict=True):
            is_left = np.zeros(len(places), np.bool_)
            for left in lefts:
                left.mark(shard, is_left)
            mask = np.zeros(samples, np.bool_)
            mask[places[is_left & (places >= 0)]] = True
            members.add(mask)
    found, start, shards = list[Lap](), position, len(order.shard_samples)
    counts_and_bits = [(members.count, members.bits()) for members in packed]
    for number, this_pass in enumerate(passes):
        count, bits = counts_and_bits[min(number, 1)]
        if count:
            found.append(Lap(start, start + count, 0, shards, this_pass, f"load/left/{position}", bits))
            start += count
    first_epoch = before.epoch_at(position) + bool(laps)
    return replace(order, earlier=before.all_epochs, left=tuple(found), first_epoch=first_epoch, start=start)


class _Packed:
    """Masks one after the other as bits, the lowest of a byte first."""

    def __init__(self) -> None:
        self.count = 0
        """Number of bits that are set."""
        self._parts: list[bytes] = []
        self._rest = np.empty(0, np.bool_)

    def add(self, mask: NDArray[np.bool_]) -> None:
        self.count += int(mask.sum())
        mask = np.concatenate([self._rest, mask])
        whole = len(mask) // 8 * 8
        self._parts.append(np.packbits(mask[:whole], bitorder="little").tobytes())
        self._rest = mask[whole:]

    def bits(self) -> bytes:
        return b"".join([*self._parts, np.packbits(self._rest, bitorder="little").tobytes()])


def _unpacked(bits: bytes, first: int, stop: int) -> NDArray[np.bool_]:
    """Return the bits from `first` to `stop` as a mask."""
    octets = np.frombuffer(bits, np.uint8)[first // 8 : -(-stop // 8)]
    return np.unpackbits(octets, bitorder="little").view(np.bool_)[first % 8 :][: stop - first]


class _Left:
    """The samples that a lap delivers from a position on.

    Memory: a byte a block, and the samples of the windows that the position cuts.
    """

    def __init__(self, order: Order, lap: Lap, position: int) -> None:
        self._lap, self._blocks = lap, _blocks_of(order, lap)
        self._is_left = np.full(len(self._blocks), position <= lap.first)
        """Whether all samples of a block remain, by its number."""
        self._samples: dict[int, list[int]] = {}
        """Other remaining samples, by shard."""
        if position > lap.first:
            layout = _LapLayout(order, lap)
            for number in range(order.num_streams):
                turn = max(0, -(-(position - lap.first - number) // order.num_streams))
                samples, index = _Stream(layout, number, _Share(turn, 0, 1)).cut_at(turn)
                numbers, others = layout.uncut(number, index)
                self._is_left[numbers] = True
                for shard, sample in samples + others:
                    self._samples.setdefault(shard, []).append(sample)

    def mark(self, shard: int, is_left: NDArray[np.bool_]) -> None:
        """Mark which samples of a shard are left."""
        lap = self._lap
        if lap.first_shard <= shard < lap.stop_shard:
            first, sizes = self._blocks.of_shard(shard - lap.first_shard)
            found = np.repeat(self._is_left[first : first + len(sizes)], sizes)
            if lap.members is not None:
                start = self._blocks.first_samples[shard]
                found &= _unpacked(lap.members, start, start + len(found))
            found[self._samples.get(shard, [])] = True
            is_left |= found


class _Blocks:
    """All shards, cut into blocks of at most c samples by their counts alone; blocks are numbered shard after shard."""

    def __init__(self, shard_samples: Sequence[int], samples_per_block: int) -> None:
        self._samples = shard_samples
        counts = [-(-samples // samples_per_block) for samples in shard_samples]
        self._first_block = [0, *accumulate(counts)]
        self.first_samples = [0, *accumulate(shard_samples)]
        """Number of the first sample of each shard among the samples of all shards."""

    def __len__(self) -> int:
        return self._first_block[-1]

    def block(self, number: int) -> tuple[int, int, int]:
        """Return the shard of a block, its first sample and the one after its last."""
        shard = bisect_right(self._first_block, number) - 1
        first = self._first_block[shard]
        of_shard, samples = self._first_block[shard + 1] - first, self._samples[shard]
        index = number - first
        return shard, index * samples // of_shard, (index + 1) * samples // of_shard

    def sizes(self) -> NDArray[np.int32]:
        """Return the number of samples in every block, shape (blocks,)."""
        first_block = np.asarray(self._first_block, np.int64)
        counts = first_block[1:] - first_block[:-1]
        samples, of_shard = np.repeat(np.asarray(self._samples, np.int64), counts), np.repeat(counts, counts)
        index = np.arange(len(self)) - np.repeat(first_block[:-1], counts)
        sizes: NDArray[np.int64] = (index + 1) * samples // of_shard - index * samples // of_shard
        return sizes.astype(np.int32)

    def of_shard(self, shard: int) -> tuple[int, NDArray[np.int64]]:
        """Return the number of a shard's first block, and the number of samples in each of its blocks."""
        first, stop = self._first_block[shard : shard + 2]
        return first, np.diff(np.arange(stop - first + 1) * self._samples[shard] // max(1, stop - first))

    def members(self, bits: bytes) -> NDArray[np.int32]:
        """Return the number of samples of every block whose bit is set, shape (blocks,)."""
        sizes = self.sizes()
        stops, found = np.cumsum(sizes, dtype=np.int64), np.empty_like(sizes)
        for first in range(0, len(sizes), _BLOCKS_AT_ONCE):
            part = slice(first, first + _BLOCKS_AT_ONCE)
            starts = stops[part] - sizes[part]
            mask = _unpacked(bits, int(starts[0]), int(stops[part][-1]))
            found[part] = np.add.reduceat(mask, starts - starts[0], dtype=np.int32)
        return found


def _blocks_of(order: Order, lap: Lap) -> _Blocks:
    return _blocks(order.shard_samples[lap.first_shard : lap.stop_shard], order.samples_per_block)


@lru_cache(maxsize=2)
def _blocks(shard_samples: tuple[int, ...], samples_per_block: int) -> _Blocks:
    return _Blocks(shard_samples, samples_per_block)


class _LapLayout:
    """The permuted blocks of one lap, and the start of every stream among them.

    The slots of a lap are the samples of all permuted blocks, one after another. Stream k owns the slots from
    `_bounds[k]` to `_bounds[k + 1]`, equal shares to within one slot, so its first and last block may be cut.

    Memory: 8 bytes a block and 16 a stream; 400 million samples in blocks of 70 take 46 MB.
    """

    def __init__(self, order: Order, lap: Lap) -> None:
        self.order, self.lap = order, lap
        self._blocks = _blocks_of(order, lap)
        sizes = self._blocks.sizes() if lap.members is None else self._blocks.members(lap.members)
        numbers = np.flatnonzero(sizes).astype(np.int32)
        shuffled = permutation(len(numbers), seed=order.seed, purpose=f"{lap.purpose}/blocks", pass_index=lap.this_pass)
        self._numbers = numbers[shuffled]
        self._sizes = sizes[self._numbers]
        stops = np.cumsum(self._sizes, dtype=np.int64)  # slot after each block
        # Streams are cut by slots, not by blocks: position p belongs to stream p % K for every p of the lap, so stream
        # k must have exactly as many samples as there are such positions, the first N % K streams one more than the
        # others. Cut at the ends of blocks, streams would differ by up to a block, and the turns of those that end
        # early would have no sample. A block that a bound cuts is read by both streams, at most K - 1 blocks a lap.
        num_samples, num_streams = lap.stop - lap.first, order.num_streams
        streams = np.arange(num_streams + 1)
        bounds = streams * (num_samples // num_streams) + np.minimum(streams, num_samples % num_streams)
        first = np.searchsorted(stops, bounds, side="right")
        before = np.where(first > 0, stops[np.maximum(first, 1) - 1], 0)
        self._bounds: list[int] = bounds.tolist()
        """First slot of each stream, and the number of slots."""
        self._first: list[int] = first.tolist()
        """Index among the permuted blocks of the one that holds each bound."""
        self._cut: list[int] = (bounds - before).tolist()
        """Samples of that block before the bound, which belong to the stream before."""

    def num_pieces(self, stream: int) -> int:
        """Return the number of blocks of a stream, including cut ones."""
        return self._first[stream + 1] - self._first[stream] + (self._cut[stream + 1] > 0)

    def piece_stops(self, stream: int) -> NDArray[np.int64]:
        """Return the number of the stream's samples up to the end of each of its pieces."""
        first = self._first[stream]
        sizes = self._sizes[first : first + self.num_pieces(stream)]
        return np.minimum(np.cumsum(sizes) - self._cut[stream], self._bounds[stream + 1] - self._bounds[stream])

    def piece(self, stream: int, index: int) -> Piece:
        """Return one piece of a stream."""
        at = self._first[stream] + index
        shard, first, stop = self._blocks.block(int(self._numbers[at]))
        before = self._cut[stream] if index == 0 else 0
        after = self._cut[stream + 1] if at == self._first[stream + 1] else None
        samples = self.samples(shard, first, stop)[before:after]
        return Piece(self.lap.first_shard + shard, samples[0], samples[-1] + 1, self.lap.this_pass)

    def samples(self, shard: int, first: int, stop: int) -> Sequence[int]:
        """Return the numbers of the lap's samples among consecutive ones of a shard."""
        if self.lap.members is None:
            return range(first, stop)
        start = self._blocks.first_samples[shard]
        found: list[int] = (first + np.flatnonzero(_unpacked(self.lap.members, start + first, start + stop))).tolist()
        return found

    def uncut(self, stream: int, index: int) -> tuple[NDArray[np.int32], list[tuple[int, int]]]:
        """Return the numbers of the complete blocks among a stream's pieces from one on, which is not the first; and
        shard and number of each sample of the others."""
        last = self.num_pieces(stream) - 1
        samples: list[tuple[int, int]] = []
        if index <= last and self._cut[stream + 1]:
            shard, first, stop, _ = self.piece(stream, last)
            samples = [(shard, sample) for sample in self.samples(shard, first, stop)]
        return self._numbers[self._first[stream] + index : self._first[stream + 1]], samples


class _Share(NamedTuple):
    """Samples of a lap that a rank takes: positions p with p % world_size == remainder, from a turn on."""

    first_turn: int
    remainder: int
    world_size: int


class _Stream:
    """One stream of a lap, planned some windows at a time for the share of one rank.

    A turn is a position in the stream: turn t of stream k is at position t * K + k of the lap.
    """

    def __init__(self, layout: _LapLayout, number: int, share: _Share) -> None:
        self._layout, self._number, self._share = layout, number, share
        self._stagger = number * layout.order.window // layout.order.num_streams
        stops = layout.piece_stops(number)
        window = (int(stops.searchsorted(share.first_turn, side="right")) + self._stagger) // layout.order.window
        first = self._first_piece(window)
        self._next_window = window
        self._start = int(stops[first - 1]) if first else 0
        self._pieces: list[Piece] = []
        self._counts: Counter[int] = Counter()
        """Samples of the share in each planned piece."""
        self._samples: list[tuple[int, int]] = []
        """Index of the piece, and sample, of each planned turn."""

    def at(self, turn: int) -> tuple[Piece, int, int]:
        """Return piece, sample and the share's count of the piece for a turn; turns must not go back."""
        while turn >= self._start + len(self._samples):
            self._plan_next()
        index, sample = self._samples[turn - self._start]
        return self._pieces[index], sample, self._counts[index]

    def cut_at(self, turn: int) -> tuple[list[tuple[int, int]], int]:
        """Return shard and number of each sample from the share's first turn to the end of the windows planned with
        it, and the first piece of the windows after them."""
        self._plan_next()
        samples = [(self._pieces[index].shard, sample) for index, sample in self._samples[turn - self._start :]]
        return samples, self._first_piece(self._next_window)

    def is_planned(self, turn: int) -> bool:
        """Whether a turn is among those that were planned last."""
        return self._start <= turn < self._start + len(self._samples)

    def _plan_next(self) -> None:
        """Plan the next windows: mix the samples of each, and count how many of each piece belong to the share."""
        self._start += len(self._samples)
        pieces: list[Piece] = []
        samples: list[tuple[int, int]] = []
        windows: list[int] = []
        last = self._layout.num_pieces(self._number)
        while len(samples) < _PLANNED_SAMPLES and (first := self._first_piece(self._next_window)) < last:
            for index in range(first, min(self._first_piece(self._next_window + 1), last)):
                piece = self._layout.piece(self._number, index)
                numbers = self._layout.samples(piece.shard, piece.first, piece.stop)
                samples += [(len(pieces), sample) for sample in numbers]
                pieces.append(piece)
            windows += [self._next_window] * (len(samples) - len(windows))
            self._next_window += 1
        order, lap = self._layout.order, self._layout.lap
        # The random words belong to the turns, counted from the stream's beginning. So a window is mixed in the same
        # way whether it is planned after others, or first, by a rank that resumes in it. Windows are the sort's main
        # key: a sample never leaves its window, and no more than the bytes of a window are held for a stream. The
        # counts include only turns of the share from its first one on: the fetcher frees a piece after that many picks,
        # and would hold it forever if a count were too high, or read it twice if it were too low.
        words = philox_words(
            len(samples),
            seed=order.seed,
            purpose=f"{lap.purpose}/window/{self._number}",
            pass_index=lap.this_pass,
            start=self._start,
        )
        mixed = [samples[index] for index in np.lexsort((words, np.asarray(windows, np.int64))).tolist()]
        self._pieces, self._samples = pieces, mixed
        self._counts = Counter(index for index, _ in mixed[self._shared()])

    def _shared(self) -> slice:
        """Return the slice of planned turns that belong to the share."""
        share, streams = self._share, self._layout.order.num_streams
        begin, step = max(self._start, share.first_turn), share.world_size // math.gcd(streams, share.world_size)
        for turn in range(begin, begin + step):
            if (turn * streams + self._number) % share.world_size == share.remainder:
                return slice(turn - self._start, None, step)
        return slice(0)

    def _first_piece(self, window: int) -> int:
        """Return the first piece of a window; windows are staggered, so that streams do not all read at once."""
        # Streams advance in step. With aligned windows all K would begin one at the same turn: a burst of K * w reads,
        # and none until the next. Stream k is shifted by k * w // K pieces, which spreads the reads over a window; its
        # first window is shorter by as much.
        return max(0, window * self._layout.order.window - self._stagger)


def bytes_held(order: Order, world_size: int, mean_image_bytes: float) -> float:
    """Return the bytes of encoded images that a rank or process holds at once; 0 if each image is read alone.

    Args:
        order: Order of the samples.
        world_size: Number of ranks times processes that fetch for each.
        mean_image_bytes: Mean size of an encoded image.
    """
    if order.samples_per_block == 1:
        return 0.0
    streams = order.num_streams // math.gcd(order.num_streams, world_size)
    # The last window of a pass and the first one of the next may overlap.
    held = streams * order.window * order.samples_per_block * mean_image_bytes
    return min(held, 2 * order.num_samples * mean_image_bytes)


def check_budget(order: Order, world_size: int, mean_image_bytes: float, prefetch_bytes: int) -> None:
    """Raise UsageError, which shows the arithmetic, if the order would exceed the budget of one rank or process: every
    stream of a rank mixes the samples of a window of pieces. Arguments are those of `bytes_held`."""
    needed = bytes_held(order, world_size, mean_image_bytes)
    if needed <= prefetch_bytes * (1 - HEDGED_SHARE):
        return
    block_bytes = order.samples_per_block * mean_image_bytes
    sharers = math.gcd(order.num_streams, world_size)
    shared = f" / {sharers} ranks" if sharers == world_size else f" / {sharers} (divides {world_size} ranks, too)"
    shared = "" if sharers == 1 else shared
    raise UsageError(
        f"prefetch_bytes {prefetch_bytes:,} must be {math.ceil(needed / (1 - HEDGED_SHARE)):,} or more: "
        f"{order.num_streams} streams{shared} * window {order.window} * blocks of {block_bytes:,.0f} bytes "
        f"({order.samples_per_block} images) are held at once, and {HEDGED_SHARE:.0%} is reserved for hedged reads; "
        "raise it, or lower block_bytes, num_streams or window"
    )
