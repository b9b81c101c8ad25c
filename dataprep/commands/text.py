"""What hostile bytes may look like on a terminal."""

from __future__ import annotations


def one_line(text: str) -> str:
    """A text without line ends and control characters: a key or a class name must not move the cursor."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
