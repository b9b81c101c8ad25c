"""What an object may be called: relative, with `/`, and never outside its root."""

from __future__ import annotations

import re

from dataprep.errors import UsageError

# A backslash is a separator to other systems; NUL and line ends are refused by disks or by Cloud Storage.
FORBIDDEN = "\\\0\r\n"
_REFUSED = re.compile(rf"(?:^|/)\.{{0,2}}(?:/|\Z)|[{re.escape(FORBIDDEN)}]")
SHOWN_CHARACTERS = 80


def check_name(name: str) -> str:
    """The name itself.

    Raises:
        UsageError: It is empty or absolute, has an empty, `.` or `..` component, or a forbidden character.
    """
    if _REFUSED.search(name) is None:
        return name
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError(
            f'object name {shown(name)} must be relative, with parts separated by "/" and none empty, "." or ".."'
        )
    raise UsageError(f"object name {shown(name)} must hold no backslash, NUL or line end")


def check_prefix(prefix: str) -> str:
    """A folder's name without its trailing slash; empty for the root.

    Raises:
        UsageError: As for `check_name`.
    """
    return check_name(prefix.removesuffix("/")) if prefix else ""


def shown(name: str) -> str:
    """A name as an error quotes it: on one line, and cut where it is very long."""
    return repr(name if len(name) <= SHOWN_CHARACTERS else name[:SHOWN_CHARACTERS] + "…")
