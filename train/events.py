"""TensorBoard's event files: scalars and images, written without TensorBoard or TensorFlow.

A file is a run of TFRecord frames, each a tensorflow.Event message (event.proto, summary.proto). The messages are few,
so they are written by hand; TensorFlow must not be imported beside torch_xla.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

import google_crc32c

# Tags of the wire format: field number x 8 + type.
_DOUBLE_1, _VARINT_1, _VARINT_2, _VARINT_3 = b"\x09", b"\x08", b"\x10", b"\x18"
_LEN_1, _LEN_3, _LEN_4, _LEN_5, _FLOAT_2 = b"\x0a", b"\x1a", b"\x22", b"\x2a", b"\x15"
_RGB = 3


class EventFile:
    """Appends to a new file of a folder, flushed after each call."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("ab")
        self._write(0, _message(_LEN_3, b"brain.Event:2"))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Values by their tags."""
        summary = b"".join(_value(tag, _FLOAT_2 + struct.pack("<f", value)) for tag, value in values.items())
        self._write(step, _message(_LEN_5, summary))

    def image(self, step: int, tag: str, png: bytes, *, height: int, width: int) -> None:
        """One PNG, sides in pixels."""
        content = _VARINT_1 + _varint(height) + _VARINT_2 + _varint(width) + _VARINT_3 + _varint(_RGB)
        self._write(step, _message(_LEN_5, _value(tag, _message(_LEN_4, content + _message(_LEN_4, png)))))

    def close(self) -> None:
        """The file stays."""
        self._file.close()

    def _write(self, step: int, what: bytes) -> None:
        event = _DOUBLE_1 + struct.pack("<d", time.time()) + _VARINT_2 + _varint(step) + what
        self._file.write(_frame(event))
        self._file.flush()


def _frame(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked_crc(length) + event + _masked_crc(event)


def _masked_crc(data: bytes) -> bytes:
    """Rotated and offset, as TFRecord stores it."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _value(tag: str, content: bytes) -> bytes:
    return _message(_LEN_1, _message(_LEN_1, tag.encode()) + content)


def _message(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
