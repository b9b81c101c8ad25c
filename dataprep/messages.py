"""Words that messages share: errors on one line, long values cut, sizes, the nearest name to one that is unknown."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

ERROR_CHARACTERS = 200
"""Characters of another library's error that a message quotes, at most."""


def one_line(error: BaseException, limit: int = ERROR_CHARACTERS) -> str:
    """Return what an error says as one line of at most `limit` characters; its type where it says nothing."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def first_line(error: BaseException | None, limit: int = 300) -> str:
    """Return the first line of what an error says, for clients that add pages of detail; its type where it is empty."""
    return shortened((str(error).strip() or type(error).__name__).splitlines()[0], limit)


def printable(text: str) -> str:
    """Replace line ends and control characters, so that hostile names cannot move a terminal's cursor."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def shortened(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, the last three of which are dots where something was cut."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def quoted(value: object, limit: int = 80) -> str:
    """Return a value as an error quotes it: its `repr` in at most `limit` characters."""
    return shortened(repr(value), limit)


def shown(name: str) -> str:
    """Return a name as an error quotes it: ASCII on one line, cut where it is long."""
    if len(name) <= 100:
        return ascii(name)
    return f"{name[:60]!a}... ({len(name):,} characters)"


def did_you_mean(name: object, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `; did you mean X?` for the choice nearest to an unknown name, or an empty text where none is near.

    Args:
        name: What was given; a value that is no text has no near choice.
        cutoff: Similarity from 0 to 1 that the choice must have at least.
    """
    known = {choice.lower(): choice for choice in choices}
    near = get_close_matches(name.lower(), known, n=1, cutoff=cutoff) if isinstance(name, str) else []
    return f"; did you mean {known[near[0]]}?" if near else ""


def not_one_of(what: str, name: object, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the error text for a name that is none of the choices, which lists them and suggests the nearest."""
    known = list(choices)
    return f"{what} {quoted(name)}, expected one of {', '.join(known)}{did_you_mean(name, known, cutoff)}"


def human_bytes(count: float) -> str:
    """Write a number of bytes as `262.1 MB`, in decimal units, as disks and networks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
