"""Every row of a shard to its one status and reason, whatever the order in which the web answers.

Encoded images go to a spool file as they come; only their places are held. So a slow answer for an early row keeps
nothing in memory, and what is written of the rows afterwards depends on the rows and the bytes that came alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from dataprep.errors import BuildError, UsageError
from dataprep.laion.duplicates import DuplicatePolicy, twins_of
from dataprep.laion.encode import EncodedImage, EncodeOptions, RejectedImageError, encode_image
from dataprep.laion.filters import RowFilter, filter_reason
from dataprep.sources.laion import Row
from dataprep.web.outcomes import Outcome, Request, Status

SUCCESS, FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE = "success", "failed_to_download", "failed_to_resize"
"""As img2dataset says them."""
FILTERED, DUPLICATE = "filtered", "duplicate"
"""Not asked for; like an earlier one of its shard and dropped."""
STATUSES = (SUCCESS, FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, FILTERED, DUPLICATE)
HASH_MISMATCH = "hash mismatch"
VERIFIED_HASHES = ("md5", "sha256")
DIGESTS = ("md5", "sha256", "sha512")
"""Names of columns for a hash of the bytes that came."""
MAX_TEXT_BYTES = 32 << 10
"""Of a row's strings together: readers of records bound what is not the image to twice as much."""

Fetch = Callable[[Iterable[Request]], Iterator[Outcome]]
"""Asks for all, and yields exactly one outcome a request, in any order; `Request.key` is the row's position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowOptions:
    """All that decides what becomes of a row, besides the bytes that come."""

    row_filter: RowFilter = field(default_factory=RowFilter)
    encode: EncodeOptions = field(default_factory=EncodeOptions)
    duplicates: DuplicatePolicy = field(default_factory=DuplicatePolicy)
    verify_hash: str | None = None
    """`md5` or `sha256`: the column to which the hash of the bytes that came must be equal."""
    digest: str = "sha256"
    """One of DIGESTS: the hash that is noted, in a column of its name."""

    def __post_init__(self) -> None:
        if self.verify_hash is not None and self.verify_hash not in VERIFIED_HASHES:
            raise UsageError(f"--verify-hash {self.verify_hash}: expected one of {', '.join(VERIFIED_HASHES)}")


def row_options_from(document: Mapping[str, Any]) -> RowOptions:
    """Read back what `dataclasses.asdict` gave, also after JSON."""
    limits: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in document["row_filter"].items()
    }
    return RowOptions(
        row_filter=RowFilter(**limits),
        encode=EncodeOptions(**document["encode"]),
        duplicates=DuplicatePolicy(**document["duplicates"]),
        verify_hash=document["verify_hash"],
        digest=document.get("digest", "sha256"),
    )


@dataclass(slots=True)
class RowResult:
    """What became of a row."""

    status: str = ""
    """One of STATUSES."""
    reason: str = ""
    """A short fixed phrase; empty on success."""
    image: EncodedImage | None = None
    """Without its bytes, which are in the spool file."""
    digest: str | None = None
    """Of the bytes that came, hex."""
    duplicate_of: str | None = None
    """The key of the first one like it."""
    spool_offset: int = 0
    spool_bytes: int = 0


def collect(rows: Sequence[Row], fetch: Fetch, options: RowOptions, spool: BinaryIO) -> list[RowResult]:
    """Ask for the rows that pass the filter, and encode what comes.

    Args:
        rows: Of one shard.
        fetch: Asks the web, or whatever stands for it.
        options: What decides a row's end.
        spool: An empty file, to be written and read; holds the encoded images in the order in which they came.

    Returns:
        A result a row, in the order of the rows.

    Raises:
        BuildError: An outcome is of no row that was asked for, or came twice.
    """
    results = [RowResult() for _ in rows]
    requests = []
    for position, row in enumerate(rows):
        reason = _reason_not_to_ask(row, options)
        if reason:
            results[position] = RowResult(FILTERED, reason)
        else:
            requests.append(Request(position, row.roles["url"]))
    for outcome in fetch(requests):
        if not 0 <= outcome.key < len(rows) or results[outcome.key].status:
            raise BuildError(f"an outcome of row {outcome.key} came unasked or twice; expected one a request")
        results[outcome.key] = _result_of(rows[outcome.key], outcome, options, spool)
    for result in results:
        if not result.status:
            result.status, result.reason = FAILED_TO_DOWNLOAD, "no answer"
    _mark_duplicates(rows, results, options.duplicates)
    return results


def read_image(spool: BinaryIO, result: RowResult) -> bytes:
    """The encoded image of a row."""
    spool.seek(result.spool_offset)
    return spool.read(result.spool_bytes)


def count_statuses(results: Iterable[RowResult]) -> dict[str, int]:
    """Rows by status, all of STATUSES."""
    counts = Counter(result.status for result in results)
    return {status: counts[status] for status in STATUSES}


def count_reasons(results: Iterable[RowResult]) -> dict[str, int]:
    """Rows by reason, `success` for those that have none; sorted by name."""
    return dict(sorted(Counter(result.reason or result.status for result in results).items()))


def failure_reason(outcome: Outcome) -> str:
    """Why nothing came, as a fixed phrase, without what differs from run to run."""
    if outcome.status is Status.HTTP:
        return f"http {outcome.http_code}"
    return outcome.status.value.replace("_", " ")


def _reason_not_to_ask(row: Row, options: RowOptions) -> str:
    if _text_bytes(row) > MAX_TEXT_BYTES:
        return "row too large"
    if options.verify_hash is not None and not row.roles[options.verify_hash]:
        return "no hash"
    return filter_reason(row.roles, options.row_filter)


def _result_of(row: Row, outcome: Outcome, options: RowOptions, spool: BinaryIO) -> RowResult:
    if outcome.body is None:
        return RowResult(FAILED_TO_DOWNLOAD, failure_reason(outcome))
    if options.verify_hash is not None:
        expected = row.roles[options.verify_hash].strip().lower()
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
    for twin in twins_of(digests, dhashes, policy):
        result = found[twin.position][1]
        result.duplicate_of = found[twin.first][0]
        if twin.action == "drop":
            result.status, result.reason = DUPLICATE, twin.reason
