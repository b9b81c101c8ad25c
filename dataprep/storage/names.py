"""Names that objects may have: relative, with `/`, and never outside their root."""

from __future__ import annotations

import re

from dataprep.errors import UsageError
from dataprep.messages import quoted

FORBIDDEN = "\\\0\r\n"
"""Characters that no name may hold: other systems take a backslash for a separator, and disks or Cloud Storage refuse
NUL and line ends."""
_REFUSED = re.compile(rf"(?:^|/)\.{{0,2}}(?:/|\Z)|[{re.escape(FORBIDDEN)}]")


def check_name(name: str) -> str:
    """Return a valid name of an object unchanged.

    Raises:
        UsageError: It is empty or absolute, has an empty, `.` or `..` component, or a forbidden character.
    """
    if _REFUSED.search(name) is None:
        return name
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError(
            f'object name {quoted(name)} must be relative, with parts separated by "/" and none empty, "." or ".."'
        )
    raise UsageError(f"object name {quoted(name)} must hold no backslash, NUL or line end")


def check_prefix(prefix: str) -> str:
    """Return a folder's name without its trailing slash; empty for the root.

    Raises:
        UsageError: The name is invalid, by the rules of `check_name`.
    """
    return check_name(prefix.removesuffix("/")) if prefix else ""
