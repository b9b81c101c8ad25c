"""TensorBoard's event files: scalars and images, written without TensorBoard or TensorFlow.

A file is a sequence of TFRecord frames, each a tensorflow.Event message (event.proto, summary.proto). The messages are
few, so they are encoded here; TensorFlow must not be imported in a process with torch_xla.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from pathlib import Path

from dataprep.formats.example import checksum, frame_head, message, varint

# Tags of the wire format: field number x 8 + type.
_DOUBLE_1, _VARINT_1, _VARINT_2, _VARINT_3 = b"\x09", b"\x08", b"\x10", b"\x18"
_LEN_1, _LEN_3, _LEN_4, _LEN_5, _FLOAT_2 = b"\x0a", b"\x1a", b"\x22", b"\x2a", b"\x15"
_RGB = 3


class EventFile:
    """A new file in a folder, to which each call appends, flushed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("ab")
        self._write(0, message(_LEN_3, b"brain.Event:2"))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Write scalar values by their tags, as float32; larger ones become infinite."""
        summary = b"".join(_value(tag, _FLOAT_2 + _float32(value)) for tag, value in values.items())
        self._write(step, message(_LEN_5, summary))

    def image(self, step: int, tag: str, png: bytes, *, height: int, width: int) -> None:
        """Write an image in PNG; height and width are in pixels."""
        content = _VARINT_1 + varint(height) + _VARINT_2 + varint(width) + _VARINT_3 + varint(_RGB)
        self._write(step, message(_LEN_5, _value(tag, message(_LEN_4, content + message(_LEN_4, png)))))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, step: int, what: bytes) -> None:
        event = _DOUBLE_1 + struct.pack("<d", time.time()) + _VARINT_2 + varint(step) + what
        self._file.write(frame_head(len(event)) + event + checksum(event))
        self._file.flush()


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _value(tag: str, content: bytes) -> bytes:
    return message(_LEN_1, message(_LEN_1, tag.encode()) + content)
