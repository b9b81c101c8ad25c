"""What a sample's key says to people: the path that it was made of.

`dataprep.sources.keys.key_of` makes keys, in which other bytes than those of letters, digits, `_`, `-` and `/` are
`=XX`.
"""

from __future__ import annotations

import quopri
import re

from dataprep.messages import printable, shortened, shown

CLOSE = "=00"
"""Separator of a shortened key and its hash: names hold no NUL, so no other key contains it."""
_MADE = re.compile(r"(?:[A-Za-z0-9_/-]|=[0-9A-Fa-f]{2})*")
"""Keys that were made of a path; others, of data that another tool wrote, stand for themselves."""
_SHOWN_CHARACTERS = 200


def path_of(key: str) -> str:
    """Return the path that a key was made of, without its extension; a shortened key keeps its end."""
    if not _MADE.fullmatch(key):
        return key
    return quopri.decodestring(key).decode("utf-8", "surrogateescape").replace("\0", CLOSE)


def readable(key: str) -> str:
    """Return the path of a key as people read it: bytes that are no UTF-8, and control characters, are replaced."""
    return printable(path_of(key))


def named(key: str) -> str:
    """Return a key as an error names it, with the path that it was made of where that differs: `=C3=A4 = 'ä'`."""
    path = path_of(key)
    return printable(shortened(key, _SHOWN_CHARACTERS)) + (f" = {shown(path)}" if path != key else "")
