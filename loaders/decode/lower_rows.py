"""Spares a decoder the rows of a JPEG below those that are needed, where it can only decode whole images.

A baseline JPEG holds its rows from top to bottom in one scan, and its header says how many there are. With a smaller
number in the header a decoder stops early, and every row that it gives is that of a full decode.
"""

from __future__ import annotations

_SCAN, _START_OF_IMAGE = 0xDA, b"\xff\xd8"
_WITH_ONE_SCAN = (0xC0, 0xC1)
"""Frames whose rows are coded one after another, if all components are in the first scan; others are progressive, or
coded arithmetically."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEGMENTS = frozenset(range(0xC0, 0xFF)) - frozenset(range(0xD0, 0xDA))
"""Markers that are followed by a length."""
_BELOW = 2
"""Rows below the last one that is needed: chroma that has half of the rows is smoothed with the row below."""
_LEAST_SAVED = 16
"""Least number of rows whose decoding takes longer than copying the file with another header."""


def without_lower_rows(data: bytes | memoryview, rows: int) -> bytes | bytearray | memoryview:
    """Return a JPEG that begins with the same rows, and ends soon after the first `rows` ones.

    Args:
        data: The file.
        rows: Number of rows that are needed, from the top.

    Returns:
        A copy with a smaller height in its header; the file as it is where that saves little, where rows are not coded
        from top to bottom, or where the header is odd.
    """
    found = _find_height(data)
    if found is None:
        return data
    place, height = found
    if height - rows < _BELOW + _LEAST_SAVED:
        return data
    shorter = bytearray(data)
    shorter[place : place + 2] = (rows + _BELOW).to_bytes(2, "big")
    return shorter


def _find_height(data: bytes | memoryview) -> tuple[int, int] | None:
    """Return where a baseline JPEG of one scan has its height, and the height."""
    frame, at = 0, len(_START_OF_IMAGE)
    if bytes(data[:at]) != _START_OF_IMAGE:
        return None
    while at + 9 < len(data) and data[at] == 0xFF and data[at + 1] in _SEGMENTS:
        marker = data[at + 1]
        if marker in _FRAMES:
            if frame or marker not in _WITH_ONE_SCAN:
                return None
            frame = at
        if marker == _SCAN:
            # Number of components in the frame and in the scan.
            if not frame or data[frame + 9] != data[at + 4]:
                return None
            return frame + 5, _number(data, frame + 5)
        at += 2 + _number(data, at + 2)
    return None


def _number(data: bytes | memoryview, at: int) -> int:
    return int(data[at]) << 8 | data[at + 1]
