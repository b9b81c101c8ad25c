"""Command lines as lists of words."""

from __future__ import annotations

from collections.abc import Sequence


def replaced(words: Sequence[object], *more: object) -> list[object]:
    """Return a command line with more options, which come in the place of those of the same names."""
    given = {_name(word) for word in more}
    found: list[object] = []
    drop = False
    for word in words:
        if _name(word):
            drop = _name(word) in given
        if not drop:
            found.append(word)
        elif not _name(word) or "=" in str(word):
            drop = False  # the value of the option ends it
    return [*found, *more]


def _name(word: object) -> str:
    return str(word).partition("=")[0] if str(word).startswith("--") else ""
