"""Text that messages share: one-line errors, shortened values, sizes, and suggestions for unknown names."""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

ERROR_CHARACTERS = 200
"""Maximum number of characters that a message quotes of another library's error."""
_LEAST_USD = 1e-12
"""Smallest amount that is not 0: below it there are only rounding errors of sums."""


def one_line(error: BaseException, limit: int = ERROR_CHARACTERS) -> str:
    """Return an error's text as one line of at most `limit` characters; the name of its type if the text is empty."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def first_line(error: BaseException | None) -> str:
    """Return the first line of an error's text, because some clients add pages of detail; its type's name if empty."""
    return shortened((str(error).strip() or type(error).__name__).splitlines()[0], 300)


def printable(text: str) -> str:
    """Replace line ends and control characters, so that hostile names cannot move a terminal's cursor."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def visible(text: str) -> str:
    """Escape what could move a terminal's cursor, change its settings or turn the direction of a text around.

    Line ends and tabs stay. The escapes are JSON's, so a JSON document keeps its content.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or _is_harmless(each) else _escape(each) for each in text)


def _is_harmless(character: str) -> bool:
    return character in "\n\t\u200c\u200d" or unicodedata.category(character) in ("Zs", "Cn", "Co")


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def shell_words(*words: object) -> str:
    """Return words of a command that a user may copy into a shell. Each stays one word there, whoever wrote it.

    All commands in messages are made with it. A word with characters that a terminal does not show as they are (line
    ends, control characters, marks of direction) is written as `$'\\x0a'`: pasted, it is the same word.
    """
    return " ".join(map(_shell_word, map(str, words)))


def command_line(*words: object, **fields: object) -> str:
    """Return a command of dataprep that a user may copy into a shell, its options named by their fields.

    A field that is True has no value; one that is None, False or empty is left out.
    """
    given = [(f"--{name.replace('_', '-')}", value) for name, value in fields.items() if value not in (None, False, "")]
    return shell_words("dataprep", *words, *(word for pair in given for word in pair if word is not True))


def _shell_word(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    shown = (each if each.isprintable() and each not in "'\\" else _hex(each) for each in word)
    return f"$'{''.join(shown)}'"


def _hex(character: str) -> str:
    errors = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors))


def shortened(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters; a longer one is cut and ends in three dots."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def quoted(value: object, limit: int = 80) -> str:
    """Return a value as an error quotes it: its `repr` in at most `limit` characters."""
    return shortened(repr(value), limit)


def shown(name: str) -> str:
    """Return a name as an error quotes it: on one line, shortened if it is long.

    UTF-8 text stays readable; control characters and bytes that are not UTF-8 are escaped.
    """
    if len(name) <= 100:
        return _escaped(name)
    return f"{_escaped(name[:60])}... ({len(name):,} characters)"


def _escaped(name: str) -> str:
    """Return the `repr` of a name, in which bytes that are not UTF-8 are `\\xff` instead of surrogates."""
    return re.sub(r"(?<!\\)((?:\\\\)*)\\udc([89a-f][0-9a-f])", r"\1\\x\2", repr(name))


def did_you_mean(name: object, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `; did you mean X?` for the choice nearest to an unknown name, or an empty text if none has the minimum
    similarity `cutoff`, from 0 to 1. A value that is not a string has no near choice."""
    known = {choice.lower(): choice for choice in choices}
    near = get_close_matches(name.lower(), known, n=1, cutoff=cutoff) if isinstance(name, str) else []
    return f"; did you mean {known[near[0]]}?" if near else ""


def there_are(name: object, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the end of an error about an unknown name: `; did you mean X? There are X, Y`, or `; there are X, Y`."""
    known = list(choices)
    hint = did_you_mean(name, known, cutoff)
    return f"{hint} There are {', '.join(known)}" if hint else f"; there are {', '.join(known)}"


def not_one_of(what: str, name: object, choices: Iterable[str]) -> str:
    """Return the error text for an unknown name: it lists the choices and suggests the nearest."""
    known = list(choices)
    return f"{what} {quoted(name)}, expected one of {', '.join(known)}{did_you_mean(name, known)}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless there is one: `1 shard`, `2,000 passes`."""
    ending = "" if count == 1 else "es" if noun.endswith(("s", "x", "tch", "sh")) else "s"
    return f"{count:,} {noun}{ending}"


def sufficient_ratio(rejected: int, total: int) -> float:
    """Return the least `max_reject_ratio` of four digits that allows `rejected` of `total` images."""
    steps = math.ceil(rejected / total * 10_000)
    while rejected > steps / 10_000 * total:  # 0.29 * 100 is less than 29
        steps += 1
    return steps / 10_000


def described_fields(fields: Mapping[str, int], samples: int) -> str:
    """Write fields as `caption, score (98 of 100 images)`, with the number of samples if not all have a field."""
    return ", ".join(
        name if count == samples else f"{name} ({of_images(count, samples)})" for name, count in fields.items()
    )


def of_images(count: int, samples: int) -> str:
    """Write a part of all images, as `98 of 100 images`."""
    return f"{count:,} of {counted(samples, 'image')}"


def human_bytes(count: float) -> str:
    """Write a number of bytes as `262.1 MB`, in decimal units, as disks and networks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Return a time as people write it: `40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def usd(amount: float) -> str:
    """Write an amount as `$1,234.56`; below a cent with two significant digits, as `$0.0012`."""
    if not _LEAST_USD <= amount < 0.01:
        return f"${max(amount, 0.0):,.2f}"
    digits = 1 - math.floor(math.log10(amount))
    return f"${amount:.{digits}f}".rstrip("0")
