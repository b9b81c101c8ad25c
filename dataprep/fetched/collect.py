"""Gives every row of a shard exactly one status and reason, independent of the order of the responses.

Encoded images go to a spool file as they arrive; only their positions are kept in memory. So no image waits in memory
for a slow response of an earlier row, and the files written afterwards depend on the rows and the downloaded bytes
only.

Shards can be built in any order and by any process, because each knows only its own rows. Within a shard the later one
of two duplicates, with the same bytes or of the same appearance, may be dropped. Across shards, `find_duplicates`
reports them from the hashes in the sidecars.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

from dataprep.errors import BuildError, FormatError, UsageError
from dataprep.fetched.encode import (
    EncodedImage,
    EncodeOptions,
    RejectedImageError,
    RowFilter,
    encode_image,
    filter_reason,
)
from dataprep.formats.img2dataset import DUPLICATE, FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, FILTERED, STATUSES, SUCCESS
from dataprep.host.heartbeat import beat
from dataprep.sources.laion import Row
from dataprep.storage.base import read_bounded
from dataprep.storage.parquet import table_in
from dataprep.web.requests import Outcome, Request, Status

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dataprep.storage.base import Storage

    Words = NDArray[np.uint64]
    Hashes = tuple[NDArray[np.int64], Words]
    """Row numbers, ascending, and the hashes of those rows."""


DuplicateAction = Literal["keep", "report", "drop"]
ACTIONS: tuple[DuplicateAction, ...] = ("keep", "report", "drop")
# Number of rows of one pass over the hashes; each takes 24 bytes during sorting.
ROWS_IN_MEMORY = 16_000_000
_HASH_BITS = 64
_RESTORE = "restore it"
MAX_SIDECAR_BYTES = 2 << 30
"""Maximum size of a sidecar that is read; the parquet file of 10,000 rows has 3 MB."""
HASH_MISMATCH, NO_ANSWER = "hash mismatch", "no answer"
VERIFIED_HASHES = ("md5", "sha256")
MAX_TEXT_BYTES = 32 << 10
"""Maximum size of all strings of a row: readers of records limit everything but the image to twice as much."""
Fetch = Callable[[Iterable[Request]], Iterator[Outcome]]
"""Function that fetches all requests and yields exactly one outcome for each, in any order; `Request.key` is the row's
position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicatePolicy:
    """Actions for a row whose image equals or resembles the image of an earlier row of its shard."""

    exact: DuplicateAction = "keep"
    """Action for files that have the same SHA-256."""
    perceptual: DuplicateAction = "keep"
    """Action for images whose dHashes differ in at most `max_distance` bits."""
    max_distance: int = 0
    """Number of the 64 bits that may differ. Even at 0, different plain surfaces or logos on white have equal
    dHashes."""

    def __post_init__(self) -> None:
        for name in ("exact", "perceptual"):
            if getattr(self, name) not in ACTIONS:
                raise UsageError(f"`{name}_duplicates` {getattr(self, name)!r}: expected one of {', '.join(ACTIONS)}")
        if not 0 <= self.max_distance < _HASH_BITS:
            raise UsageError(f"`duplicate_distance` must be 0 to {_HASH_BITS - 1} bits, got {self.max_distance}")

    @property
    def looks(self) -> bool:
        """Whether duplicates are searched at all; then the columns `dhash` and `duplicate_of` are written."""
        return (self.exact, self.perceptual) != ("keep", "keep")


class Duplicate(NamedTuple):
    """A row whose image equals or resembles the image of an earlier row."""

    position: int
    first: int
    """Position of that earlier row, the first of its kind."""
    action: DuplicateAction
    reason: str


def duplicates_of(sha256s: Sequence[str], dhashes: Sequence[int], policy: DuplicatePolicy) -> Iterator[Duplicate]:
    """Yield the duplicates of earlier rows, in order, each with the first matching row that is not itself a duplicate.

    A file that is dropped may also equal the file of a duplicate which is only reported.
    """
    import numpy as np

    seen: dict[str, int] = {}
    firsts = np.empty(len(dhashes), np.uint64)
    positions: list[int] = []
    for position, (sha256, dhash) in enumerate(zip(sha256s, dhashes, strict=True)):
        if policy.exact != "keep" and sha256 in seen:
            yield Duplicate(position, seen[sha256], policy.exact, "exact duplicate")
            continue
        if policy.perceptual != "keep":
            near = np.bitwise_count(firsts[: len(positions)] ^ np.uint64(dhash)) <= policy.max_distance
            if near.any():
                yield Duplicate(position, positions[int(near.argmax())], policy.perceptual, "perceptual duplicate")
                if (policy.exact, policy.perceptual) == ("drop", "report"):  # it stays, so equal files follow it
                    seen.setdefault(sha256, position)
                continue
        seen.setdefault(sha256, position)
        firsts[len(positions)] = dhash
        positions.append(position)


def find_duplicates(
    hashes: Callable[[], Iterable[Hashes]], rows: int, rows_in_memory: int = ROWS_IN_MEMORY
) -> Iterator[tuple[int, int]]:
    """Yield rows with equal hashes over a complete dataset. Several passes, each over a share of the hashes, bound the
    memory.

    The result depends on the rows only, not on their division into shards or passes.

    Args:
        hashes: Called once in each pass; returns row numbers, ascending, and their 64-bit hashes, some at a time.
        rows: Approximate number of rows.
        rows_in_memory: Approximate maximum number of rows of one pass.

    Yields:
        Number of a row, and of the first one with its hash; sorted by hash within a pass.
    """
    passes = max(1, -(-rows // rows_in_memory))
    for share in range(passes):
        yield from _equal_in_share(hashes(), share, passes)


def sidecar_hashes(storage: Storage, files: Mapping[int, str], rows_per_shard: int, column: str) -> Iterator[Hashes]:
    """Yield the hashes from the parquet sidecars of the shards, for `find_duplicates`.

    Args:
        files: The parquet file of each shard, by the shard's number, ascending.
        rows_per_shard: Number of rows of a shard: a row's number is its shard's number times this, plus its position in
            the shard.
        column: `sha256`, of which the first 64 bits are taken, or `dhash`.
    """
    import numpy as np

    for shard, name in files.items():
        data = read_bounded(storage, name, MAX_SIDECAR_BYTES, advice=_RESTORE)
        if data is None:
            raise FormatError(f"{storage.url_of(name)}: not found; {_RESTORE}")
        table = table_in(data, ("status", column))
        values = zip(table.column("status").to_pylist(), table.column(column).to_pylist(), strict=True)
        found = [(row, int(text[:16], 16)) for row, (status, text) in enumerate(values) if status == "success"]
        numbers = np.array([row for row, _ in found], np.int64) + shard * rows_per_shard
        yield numbers, np.array([word for _, word in found], np.uint64)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowOptions:
    """Options that, together with the downloaded bytes, decide a row's result."""

    row_filter: RowFilter = field(default_factory=RowFilter)
    encode: EncodeOptions = field(default_factory=EncodeOptions)
    duplicates: DuplicatePolicy = field(default_factory=DuplicatePolicy)
    verify_hash: str | None = None
    """Column, `md5` or `sha256`, with the hash that the downloaded bytes must have."""
    digest: Literal["sha256"] = "sha256"
    """Hash of the downloaded bytes that is stored, in the column `sha256`; a part of plans and manifests."""

    def __post_init__(self) -> None:
        if self.verify_hash is not None and self.verify_hash not in VERIFIED_HASHES:
            raise UsageError(f"`verify_hash` {self.verify_hash}: expected one of {', '.join(VERIFIED_HASHES)}")


@dataclass(slots=True)
class RowResult:
    """The result of a row."""

    status: str = ""
    """One of STATUSES."""
    reason: str = ""
    """Reason of the status, as a short fixed phrase; empty on success."""
    image: EncodedImage | None = None
    """The image, without its bytes, which are in the spool file."""
    digest: str | None = None
    """Hash of the downloaded bytes, in hexadecimal."""
    duplicate_of: str | None = None
    """Key of the first row with a similar or equal image."""
    spool_offset: int = 0
    spool_bytes: int = 0


def collect(rows: Sequence[Row], fetch: Fetch, options: RowOptions, spool: BinaryIO) -> list[RowResult]:
    """Fetch the rows that pass the filter, and encode their images.

    Args:
        fetch: Fetches from the web, or from a substitute for it.
        options: Options that decide a row's status.
        spool: An empty file, opened for writing and reading; receives the encoded images in the order in which they are
            ready.

    Returns:
        One result for each row, in the order of the rows.

    Raises:
        BuildError: An outcome belongs to no requested row, or came twice.
    """
    results = [RowResult() for _ in rows]
    requests = []
    for position, row in enumerate(rows):
        reason = _reason_not_to_fetch(row, options)
        if reason:
            results[position] = RowResult(FILTERED, reason)
        else:
            requests.append(Request(position, str(row.roles["url"])))
    for outcome in fetch(requests):
        if not 0 <= outcome.key < len(rows) or results[outcome.key].status:
            raise BuildError(
                f"an outcome of row {outcome.key} was not requested or came twice; expected one for each request"
            )
        results[outcome.key] = _result_of(rows[outcome.key], outcome, options, spool)
        beat()
    for result in results:
        if not result.status:
            result.status, result.reason = FAILED_TO_DOWNLOAD, NO_ANSWER
    _mark_duplicates(rows, results, options.duplicates)
    return results


def read_image(spool: BinaryIO, result: RowResult) -> bytes:
    """Return the encoded image of a row."""
    spool.seek(result.spool_offset)
    return spool.read(result.spool_bytes)


def count_statuses(results: Iterable[RowResult]) -> dict[str, int]:
    """Count the rows by status, with an entry for each of STATUSES."""
    counts = Counter(result.status for result in results)
    return {status: counts[status] for status in STATUSES}


def count_reasons(results: Iterable[RowResult]) -> dict[str, int]:
    """Count the rows by reason, with `success` for rows without one; sorted by name."""
    return dict(sorted(Counter(result.reason or result.status for result in results).items()))


def failure_reason(outcome: Outcome) -> str:
    """Return why a download failed, as a fixed phrase without details that differ from run to run."""
    if outcome.status is Status.HTTP:
        return f"http {outcome.http_code}"
    return status_reason(outcome.status)


def status_reason(status: Status) -> str:
    """Return the reason of a row whose request had another status than `http`."""
    return status.value.replace("_", " ")


def _equal_in_share(hashes: Iterable[Hashes], share: int, passes: int) -> Iterator[tuple[int, int]]:
    import numpy as np

    kept_numbers, kept_hashes = [], []
    for numbers, words in hashes:
        mine = words % np.uint64(passes) == share
        kept_numbers.append(numbers[mine])
        kept_hashes.append(words[mine])
    if not kept_numbers:
        return
    numbers, words = np.concatenate(kept_numbers), np.concatenate(kept_hashes)
    order = np.argsort(words, kind="stable")
    numbers, words = numbers[order], words[order]
    starts = np.flatnonzero(np.concatenate(([True], words[1:] != words[:-1])))
    counts = np.diff(np.append(starts, len(words)))
    for start, count in zip(starts[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
        first, *others = numbers[start : start + count].tolist()
        for number in others:
            yield number, first


def _reason_not_to_fetch(row: Row, options: RowOptions) -> str:
    if _text_bytes(row) > MAX_TEXT_BYTES:
        return "row too large"
    if options.verify_hash is not None and not row.roles[options.verify_hash]:
        return "no hash"
    return filter_reason(row.roles, options.row_filter)


def _result_of(row: Row, outcome: Outcome, options: RowOptions, spool: BinaryIO) -> RowResult:
    if outcome.body is None:
        return RowResult(FAILED_TO_DOWNLOAD, failure_reason(outcome))
    if options.verify_hash is not None:
        expected = str(row.roles[options.verify_hash]).strip().lower()
        if hashlib.new(options.verify_hash, outcome.body, usedforsecurity=False).hexdigest() != expected:
            return RowResult(FAILED_TO_DOWNLOAD, HASH_MISMATCH)
    try:
        image = encode_image(outcome.body, options.encode, options.row_filter, with_dhash=options.duplicates.looks)
    except RejectedImageError as error:
        return RowResult(FAILED_TO_RESIZE, str(error))
    offset, data, image.data = spool.tell(), image.data, b""
    spool.write(data)
    return RowResult(
        SUCCESS,
        image=image,
        digest=hashlib.new(options.digest, outcome.body, usedforsecurity=False).hexdigest(),
        spool_offset=offset,
        spool_bytes=len(data),
    )


def _text_bytes(row: Row) -> int:
    texts = (value for value in (*row.roles.values(), *row.carried) if isinstance(value, str))
    return sum(len(text.encode()) for text in texts)


def _mark_duplicates(rows: Sequence[Row], results: Sequence[RowResult], policy: DuplicatePolicy) -> None:
    if not policy.looks:
        return
    found = [(row.key, result) for row, result in zip(rows, results, strict=True) if result.status == SUCCESS]
    digests = [result.digest or "" for _, result in found]
    dhashes = [(result.image and result.image.dhash) or 0 for _, result in found]
    for duplicate in duplicates_of(digests, dhashes, policy):
        result = found[duplicate.position][1]
        result.duplicate_of = found[duplicate.first][0]
        if duplicate.action == "drop":
            result.status, result.reason = DUPLICATE, duplicate.reason
