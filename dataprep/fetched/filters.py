"""Decides by the columns of a table which rows are not fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dataprep.errors import UsageError
from dataprep.sources.tables import Value

Number = int | float
"""Type of a limit that is stored as given: 3 stays 3 in plan and manifest and does not become 3.0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFilter:
    """Limits on a table's columns; None and empty ones are not applied.

    A row without a value in a limited column is filtered, because an unknown value may break the limit. Sizes are the
    exception: if the table does not have them, the downloaded image is measured.
    """

    min_image_size: int = 0
    """Minimum length of the shorter side, in pixels; applied to the table's sizes and again to the downloaded image."""
    max_image_area: int | None = None
    """Maximum number of pixels of an image."""
    max_aspect_ratio: Number | None = None
    """Maximum ratio of the longer to the shorter side."""
    min_similarity: Number | None = None
    max_punsafe: Number | None = None
    max_pwatermark: Number | None = None
    nsfw: tuple[str, ...] = ()
    """Values of NSFW to keep, e.g. UNLIKELY, in upper or lower case."""
    languages: tuple[str, ...] = ()
    """Language codes to keep, e.g. en, in upper or lower case."""

    def __post_init__(self) -> None:
        if self.min_image_size < 0:
            raise UsageError(f"--min-image-size must be 0 or more, got {self.min_image_size}")
        if self.max_image_area is not None and self.max_image_area < 1:
            raise UsageError(f"--max-image-area must be 1 or more, got {self.max_image_area}")
        if self.max_aspect_ratio is not None and not self.max_aspect_ratio >= 1:
            raise UsageError(f"--max-aspect-ratio must be 1 or more, got {self.max_aspect_ratio:g}")


TOO_SMALL, AREA_TOO_LARGE, RATIO_TOO_LARGE = SIZE_REASONS = (
    "image too small",
    "image area too large",
    "aspect ratio too large",
)
"""Reasons for refusing an image by its size, in img2dataset's words."""
LIMITED_ROLES = {
    "similarity": "min_similarity",
    "punsafe": "max_punsafe",
    "pwatermark": "max_pwatermark",
    "nsfw": "nsfw",
    "language": "languages",
}
"""Name of the limit that needs a role's column, by role."""


def refuse_absent_columns(row_filter: RowFilter, roles: Mapping[str, str]) -> None:
    """Raise UsageError if a limit needs a column that the table does not have: it would filter every row."""
    for role, limit in LIMITED_ROLES.items():
        value = getattr(row_filter, limit)
        if value not in (None, ()) and role not in roles:
            raise UsageError(
                f"--{limit.replace('_', '-')} needs a column {role}, the table has none by that name; "
                f"say which one with --column {role}=NAME, or leave the limit out"
            )


def filter_reason(roles: Mapping[str, Value], row_filter: RowFilter) -> str:
    """Return why a row is not fetched; an empty text if it is fetched.

    Args:
        roles: The row's values by role.
        row_filter: The limits.
    """
    url, width, height = (roles.get(role) for role in ("url", "width", "height"))
    if not (isinstance(url, str) and url.strip()):
        return "no url"
    if isinstance(width, int) and isinstance(height, int) and min(width, height) > 0:
        reason = size_reason(width, height, row_filter)
        if reason:
            return reason
    if row_filter.min_similarity is not None and not _at_least(roles["similarity"], row_filter.min_similarity):
        return "similarity"
    for role, limit in (("punsafe", row_filter.max_punsafe), ("pwatermark", row_filter.max_pwatermark)):
        if limit is not None and not _at_most(roles[role], limit):
            return role
    for role, kept in (("nsfw", row_filter.nsfw), ("language", row_filter.languages)):
        if kept and not _one_of(roles[role], kept):
            return role
    return ""


def size_reason(width: int, height: int, row_filter: RowFilter) -> str:
    """Return which of SIZE_REASONS refuses an image of this size, in pixels; an empty text if it is accepted."""
    if min(width, height) < row_filter.min_image_size:
        return TOO_SMALL
    if row_filter.max_image_area is not None and width * height > row_filter.max_image_area:
        return AREA_TOO_LARGE
    ratio = max(width, height) / min(width, height)
    if row_filter.max_aspect_ratio is not None and ratio > row_filter.max_aspect_ratio:
        return RATIO_TOO_LARGE
    return ""


def _at_least(value: Value, limit: float) -> bool:
    return isinstance(value, Number) and value >= limit


def _at_most(value: Value, limit: float) -> bool:
    return isinstance(value, Number) and value <= limit


def _one_of(value: Value, kept: tuple[str, ...]) -> bool:
    return isinstance(value, str) and value.strip().lower() in {choice.lower() for choice in kept}
