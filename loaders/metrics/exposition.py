"""OpenMetrics over HTTP: what Prometheus scrapes from the loaders of a process.

Nothing is measured for it: a scrape copies what the stages count in any case. Loaders that name the same port share
one server, which ends with the last of them. A forked process closes what it inherited, so it never keeps a port.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from dataprep.errors import UsageError, install_hint
from loaders.config import LoaderConfig
from loaders.engine.durations import Durations
from loaders.engine.stats import Snapshot
from loaders.metrics.table import BUCKETS_S, LOADER_LABELS, METRICS, PREFIX, Metric

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family


class Observed(Protocol):
    """A loader whose counters are served."""

    config: LoaderConfig

    def snapshot(self) -> Snapshot:
        """Return everything that the loader counts; any thread may call this."""


@dataclass(slots=True, eq=False)
class _Served:
    """One loader of a server, which does not keep it alive."""

    loader: weakref.ref[Observed]
    split: str
    number: int
    """Lowest number that no other open loader of the server has."""


class _Server:
    """A server on one port, for all loaders that name it."""

    def __init__(self, address: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self.loaders: list[_Served] = []
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._http, self._thread = start_http_server(port, address, registry)
        except (OSError, UnicodeError) as error:
            raise UsageError(_refused(address, port, error)) from error
        self.port = int(self._http.server_port)
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}/metrics"

    def add(self, loader: Observed, split: str) -> _Served:
        """Serve a loader, too."""
        taken = {each.number for each in self.loaders}
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        served = _Served(weakref.ref(loader), split, number)
        self.loaders.append(served)
        return served

    def collect(self) -> Iterator[Family]:
        """Yield every metric with the values of all loaders, as a registry of prometheus_client asks for them."""
        found = []
        for served in list(self.loaders):
            loader = served.loader()
            if loader is not None:
                labels = served.split, str(loader.config.rank), str(served.number)
                found.append((labels, loader.config, loader.snapshot()))
        for metric in METRICS:
            yield _family(metric, found)

    def close(self) -> None:
        """End the server; the port is free afterwards."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def forget(self) -> None:
        """Close what a forked process inherited: the socket without the thread that serves it."""
        with suppress(OSError):
            self._http.socket.close()


@dataclass(slots=True)
class _Servers:
    """All servers of this process."""

    by_place: dict[tuple[str, int], _Server] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    watches_forks: bool = False

    def forget(self) -> None:
        """Give up all servers, in a process that was just forked."""
        self.lock = threading.Lock()
        servers, self.by_place = self.by_place, {}
        for server in servers.values():
            server.forget()


_servers = _Servers()


class Registration:
    """A loader that is being served; `serve` makes it."""

    def __init__(self, server: _Server, served: _Served) -> None:
        self._server, self._served = server, served
        self.url = server.url

    def close(self) -> None:
        """Serve this loader no more, and end the server if it was the last one; a second call does nothing."""
        with _servers.lock:
            if self._served not in self._server.loaders:
                return
            self._server.loaders.remove(self._served)
            place = next((place for place, server in _servers.by_place.items() if server is self._server), None)
            if self._server.loaders or place is None:
                return
            del _servers.by_place[place]
            self._server.close()


def serve(loader: Observed, split: str, address: str, port: int) -> Registration:
    """Serve a loader's metrics until the registration is closed or the loader is gone.

    Args:
        loader: Loader, which the server does not keep alive.
        split: Name of the split, for the label.
        address: Address of this machine; 127.0.0.1 is reached from this machine only.
        port: Port; 0 takes any that is free.

    Raises:
        UsageError: The package that writes the format is not installed, or the port cannot be had.
    """
    if find_spec("prometheus_client") is None:
        raise UsageError(f"metrics_port needs prometheus_client, which is not installed: {install_hint('metrics')}")
    with _servers.lock:
        if not _servers.watches_forks:
            os.register_at_fork(after_in_child=_servers.forget)
            _servers.watches_forks = True
        server = _servers.by_place.get((address, port)) if port else None
        if server is None:
            server = _Server(address, port)
            _servers.by_place[address, server.port] = server
        registration = Registration(server, server.add(loader, split))
    gone = weakref.finalize(loader, _close_later, registration)
    gone.atexit = False
    return registration


def _close_later(registration: Registration) -> None:
    """Close a registration in a thread of its own: the collector of garbage may run in any, also in the server's."""
    threading.Thread(target=registration.close, name="loader-metrics-close", daemon=True).start()


def _refused(address: str, port: int, error: OSError | UnicodeError) -> str:
    what = f"metrics_port {port} on {address}"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            f"{what}: in use by another process, expected a free port; each process of a machine needs its own, e.g. "
            "metrics_port=9464 + local_rank, and 0 takes any that is free"
        )
    reason = error.strerror if isinstance(error, OSError) else "not an address"
    return f"{what}: {reason}; give a free port and an address of this machine"


def _family(metric: Metric, found: Sequence[tuple[tuple[str, ...], LoaderConfig, Snapshot]]) -> Family:
    """Return a metric with its values of all loaders."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names = (*LOADER_LABELS, *metric.labels)
    family: HistogramMetricFamily | CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "histogram":
        family = HistogramMetricFamily(PREFIX + metric.name, metric.text, labels=names)
    elif metric.kind == "counter":
        family = CounterMetricFamily(PREFIX + metric.name, metric.text, labels=names)
    else:
        family = GaugeMetricFamily(PREFIX + metric.name, metric.text, labels=names)
    for of_loader, config, snapshot in found:
        for own, value in metric.values(snapshot, config).items():
            labels = (*of_loader, *own)
            if isinstance(family, HistogramMetricFamily) and isinstance(value, Durations):
                family.add_metric(labels, buckets=_buckets(value), sum_value=value.sum_s)
            elif not isinstance(family, HistogramMetricFamily) and not isinstance(value, Durations):
                family.add_metric(labels, value)
    return family


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    counts = durations.cumulative(BUCKETS_S)
    bounds = [str(bound) for bound in BUCKETS_S]
    return [*zip(bounds, counts, strict=True), ("+Inf", durations.count)]
