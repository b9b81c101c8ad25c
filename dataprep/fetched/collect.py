"""Gives every row of a shard exactly one status and reason, independent of the order of the responses.

Encoded images go to a spool file as they arrive; only their positions are kept in memory. So no image waits in memory
for a slow response of an earlier row, and the files written afterwards depend on the rows and the downloaded bytes
only.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

from dataprep.errors import BuildError, UsageError
from dataprep.fetched.duplicates import DuplicatePolicy, duplicates_of
from dataprep.fetched.encode import EncodedImage, EncodeOptions, RejectedImageError, encode_image
from dataprep.fetched.filters import RowFilter, filter_reason
from dataprep.formats.img2dataset import DUPLICATE, FAILED_TO_DOWNLOAD, FAILED_TO_RESIZE, FILTERED, STATUSES, SUCCESS
from dataprep.host.heartbeat import beat
from dataprep.sources.laion import Row
from dataprep.web.outcomes import Outcome, Request, Status

HASH_MISMATCH, NO_ANSWER = "hash mismatch", "no answer"
VERIFIED_HASHES = ("md5", "sha256")
MAX_TEXT_BYTES = 32 << 10
"""Maximum size of all strings of a row: readers of records limit everything but the image to twice as much."""

Fetch = Callable[[Iterable[Request]], Iterator[Outcome]]
"""Function that fetches all requests and yields exactly one outcome for each, in any order; `Request.key` is the row's
position."""


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
            raise UsageError(f"--verify-hash {self.verify_hash}: expected one of {', '.join(VERIFIED_HASHES)}")


@dataclass(slots=True)
class RowResult:
    """The result of a row."""

    status: str = ""
    """How the row ended: one of STATUSES."""
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
        rows: Rows of one shard.
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
