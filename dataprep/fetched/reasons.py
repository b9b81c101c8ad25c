"""The reasons for which a row can fail, so that a mistyped one is not taken for a reason that no row has."""

from __future__ import annotations

import re

from dataprep.dataset.records import Manifest
from dataprep.errors import UsageError
from dataprep.fetched.collect import HASH_MISMATCH, NO_ANSWER, status_reason
from dataprep.fetched.encode import CANNOT_BE_ENCODED, FAULT_REASONS
from dataprep.fetched.filters import SIZE_REASONS
from dataprep.fetched.newest import Choice
from dataprep.formats.img2dataset import OTHER, SUCCESS
from dataprep.messages import did_you_mean, quoted
from dataprep.web.outcomes import Status

HTTP_CODE = re.compile(r"http (?!200)[1-5]\d\d")
"""Pattern of the reason for an answer with another status code than 200."""
FAILURES = tuple(
    dict.fromkeys(
        (
            *(status_reason(status) for status in Status if status not in (Status.SUCCESS, Status.HTTP)),
            HASH_MISMATCH,
            NO_ANSWER,
            *FAULT_REASONS.values(),
            CANNOT_BE_ENCODED,
            *SIZE_REASONS,
            OTHER,
        )
    )
)
"""Reasons of rows that failed to download or to be resized, without those of HTTP."""
_CODE = re.compile(r"(?<!\d)\d{3}(?!\d)")
_NEAR = 0.5
"""Minimum similarity of the suggestion: `404` is so near to `http 404`."""


def check_reasons(choice: Choice, manifest: Manifest) -> None:
    """Refuse a reason for which no row can have failed.

    Args:
        choice: The chosen reasons.
        manifest: Manifest of the dataset, whose rows may have reasons of another tool.

    Raises:
        UsageError: A reason is neither known nor that of a row; the text lists the known ones and the nearest.
    """
    counted = {reason for split in manifest.splits for reason in split.reasons} - {SUCCESS}
    for reason in choice.reasons:
        if reason in FAILURES or reason in counted or HTTP_CODE.fullmatch(reason):
            continue
        codes = [code for digits in _CODE.findall(reason) if HTTP_CODE.fullmatch(code := f"http {digits}")]
        known = sorted({*FAILURES, *counted})
        raise UsageError(
            f"--reason {quoted(reason)}: no row fails for this reason, expected http and a status code such as "
            f"http 404, or one of {', '.join(known)}{did_you_mean(reason, [*codes, *known], cutoff=_NEAR)}"
        )
