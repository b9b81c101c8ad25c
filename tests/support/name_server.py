"""A name server on loopback that answers what a test says, differently each time if it likes."""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

A, AAAA = 1, 28
_NO_SUCH_NAME = 3
_HEAD_BYTES = 12


class NameServer:
    """Answers over UDP; `asked` counts the questions by (name, type).

    Args:
        answer: From a name and how often the same question came before, to addresses of both families; none of either
            means that there is no such name, and None that nothing is answered.
        address: Where it listens; port 0 is a free one.
    """

    def __init__(self, answer: Callable[[str, int], Sequence[str] | None], address: tuple[str, int]) -> None:
        self._answer = answer
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self.asked: Counter[tuple[str, int]] = Counter()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def serve(self) -> None:
        """Until an empty datagram comes."""
        while True:
            question, asker = self._socket.recvfrom(4096)
            if not question:
                return
            if reply := self._reply(question):
                self._socket.sendto(reply, asker)

    def stop(self) -> None:
        self._socket.sendto(b"", self._socket.getsockname())

    def close(self) -> None:
        self._socket.close()

    def _reply(self, question: bytes) -> bytes | None:
        name, end = _name(question)
        (kind,) = struct.unpack_from(">H", question, end)
        before = self.asked[name, kind]
        self.asked[name, kind] += 1
        addresses = self._answer(name, before)
        if addresses is None:
            return None
        parsed = [ipaddress.ip_address(address) for address in addresses]
        records = [each.packed for each in parsed if {4: A, 6: AAAA}[each.version] == kind]
        flags = 0x8180 | (0 if addresses else _NO_SUCH_NAME)
        head = question[:2] + struct.pack(">5H", flags, 1, len(records), 0, 0)
        body = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(record)) + record for record in records)
        return head + question[_HEAD_BYTES : end + 4] + body


def _name(question: bytes) -> tuple[str, int]:
    """The name that is asked for, and where it ends."""
    labels, at = [], _HEAD_BYTES
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    return ".".join(labels), at + 1


@contextmanager
def name_server(
    answer: Callable[[str, int], Sequence[str] | None], address: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[NameServer]:
    """A running one."""
    server = NameServer(answer, address)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
        server.close()
