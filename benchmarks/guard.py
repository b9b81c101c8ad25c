"""What `dataprep guard` costs a run that reads from Cloud Storage: with it and without it, in turn.

    python benchmarks/guard.py --json benchmarks/results/guard.json

A run computes for a while each step, and reads the next four objects of 256 KiB meanwhile, from an emulator that waits
20 ms before it answers. A second kind of run computes nothing, so that it shows what each read costs. The time is that
of the steps alone, without the start of the process; each way is first in its turn. One way leads through a
process that only passes bytes on: what it costs, no proxy in Python can save.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.originals import machine_facts  # noqa: E402
from tests.support.gcs_emulator import GCSEmulator  # noqa: E402
from tests.support.guard_soak import EPOCHS, LATENCY_MS  # noqa: E402
from tests.support.guarded import ENVIRONMENT, HERE, NAME, fill_bucket  # noqa: E402

BUCKET = "guard-near"
CLIENTS = ("google-cloud-storage", "obstore")
COMPUTE_S = (0.05, 0.0)
TARGET = 0.01
"""Largest overhead that is wanted of a run that computes."""


Way: TypeAlias = Literal["alone", "guarded", "passed on"]
"""How a run reaches the emulator: directly, through the guard, or through a process that passes bytes on."""
WAYS: tuple[Way, ...] = get_args(Way)
READ_BYTES = 1 << 20


def run_s(client: str, compute_s: float, way: Way, relay_url: str) -> float:
    """Return the seconds that the steps of a run take; `relay_url` is that of the process that passes bytes on."""
    words = [sys.executable, "-c", EPOCHS, client, f"gs://{BUCKET}/{NAME}", str(compute_s)]
    environment = dict(os.environ)
    if way == "guarded":
        words = [sys.executable, "-m", "dataprep", "guard", "--zone", HERE, "--json", "--", *words]
    elif way == "passed on":
        environment["STORAGE_EMULATOR_HOST"] = relay_url
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    if run.returncode:
        raise SystemExit(run.stderr[-2000:])
    return float((run.stderr if way == "guarded" else run.stdout).split()[-1])


@contextlib.contextmanager
def passing_on(url: str) -> Iterator[str]:
    """Run a process that passes bytes on to a server, and yield its URL."""
    address = urlsplit(url)
    mine, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_pass_on, args=(address.hostname, address.port, its), daemon=True
    )
    process.start()
    try:
        yield f"http://127.0.0.1:{mine.recv()}"
    finally:
        process.kill()
        process.join()


def _pass_on(host: str, port: int, started: Connection) -> None:
    """Pass bytes on, with the server's name in the heads of requests: the emulator answers to no other."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mine: bytes = b"") -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                writer.write(data.replace(mine, f"{host}:{port}".encode()) if mine else data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, port, limit=READ_BYTES)
        name, number = writer.get_extra_info("sockname")
        await asyncio.gather(pump(reader, far_writer, f"{name}:{number}".encode()), pump(far_reader, writer))

    async def serve() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", 0, limit=READ_BYTES)
        started.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def overhead(client: str, compute_s: float, rounds: int, relay_url: str) -> dict[str, Any]:
    """Measure a kind of run in rounds; return its times, and what each way costs, in the median round."""
    found: dict[Way, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        first = number % len(WAYS)
        for way in (*WAYS[first:], *WAYS[:first]):
            found[way].append(run_s(client, compute_s, way, relay_url))
    row: dict[str, Any] = {"client": client, "compute_ms": 1000 * compute_s, "s": found, "overhead": {}}
    for way in WAYS[1:]:
        lost = [through / alone - 1 for through, alone in zip(found[way], found["alone"], strict=True)]
        low, _, high = statistics.quantiles(lost, n=4)
        row["overhead"][way] = {"median": statistics.median(lost), "quartiles": [low, high]}
    return row


def print_row(row: dict[str, Any]) -> None:
    """Print a line for each way."""
    for way, found in row["overhead"].items():
        low, high = found["quartiles"]
        above = way == "guarded" and row["compute_ms"] and found["median"] > TARGET
        short = " (more than wanted)" if above else ""
        kind = f"{row['client']}, {row['compute_ms']:g} ms a step, {way}"
        print(f"{kind}: {found['median']:+.1%}{short}, quartiles {low:+.1%} and {high:+.1%}", flush=True)


def main() -> None:
    """Measure, and print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more, for quartiles")
    os.environ.update(ENVIRONMENT)
    rows = []
    with GCSEmulator() as emulator:
        os.environ["STORAGE_EMULATOR_HOST"] = emulator.url
        fill_bucket(emulator, BUCKET)
        emulator.set_latency(LATENCY_MS)
        with passing_on(emulator.url) as url:
            for client in CLIENTS:
                for compute_s in COMPUTE_S:
                    rows.append(overhead(client, compute_s, options.rounds, url))
                    print_row(rows[-1])
    if options.json:
        document = machine_facts() | {"latency_ms": LATENCY_MS, "rounds": options.rounds, "rows": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
