"""Real connections of real processes, found in /proc."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from dataprep.guard.escapes import Connection, Watch, parse_address

CONNECT = "import socket as s, sys; c = s.create_connection(sys.argv[1:]); print(flush=True); input()"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0100007F:0050", ("127.0.0.1", 80)),
        ("CFFA8E8E:01BB", ("142.142.250.207", 443)),
        ("0000000000000000FFFF00000100007F:01BB", ("127.0.0.1", 443)),
        ("B80D0120000000000000000001000000:01BB", ("2001:db8::1", 443)),
    ],
)
def test_addresses_of_the_kernel_are_read(text, expected):
    assert parse_address(text) == expected


@pytest.fixture
def upstream():
    """A server that only the guard may reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def test_a_connection_past_the_guard_is_named_by_program_and_address(upstream):
    command = [sys.executable, "-c", CONNECT, upstream[0], str(upstream[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        watch = Watch(process.pid, upstream)
        watch.sample()
        watch.sample()
        process.communicate(b"\n")
    (found,) = watch.found
    assert found == Connection(found.program, f"{upstream[0]}:{upstream[1]}")
    assert found.program.startswith("python")


def test_connections_of_other_processes_and_to_other_ports_are_not_escapes(upstream):
    command = [sys.executable, "-c", CONNECT, upstream[0], str(upstream[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        other, elsewhere = Watch(2**22 + 1, upstream), Watch(os.getpid(), (upstream[0], 1))
        other.sample()
        elsewhere.sample()
        process.communicate(b"\n")
    assert other.found == elsewhere.found == set()
