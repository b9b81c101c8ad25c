"""Every metric of a loader, and OpenMetrics over HTTP: what Prometheus scrapes from the loaders of a process.

Nothing extra is measured: a scrape copies counters that the stages keep anyway. Loaders that name the same port share
one server, which ends with the last of them. A forked process closes what it inherited, so it never keeps a port.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from dataprep.errors import UsageError, install_hint
from loaders.config import LoaderConfig
from loaders.engine.stats import Durations, Snapshot

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

PREFIX = "dataprep_loader_"
LOADER_LABELS = ("split", "rank", "loader")
"""Labels of every metric; `loader` numbers the open loaders of a process from 0."""
BUCKETS_S = (*(float(f"{step}e{decade}") for decade in range(-4, 2) for step in (1, 2, 5)), 100.0)
"""Upper bounds of the buckets for Prometheus, seconds; all of ours would be some hundred series a stage."""

Values: TypeAlias = Mapping[tuple[str, ...], float | Durations]
"""Values of a metric, by the values of its own labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family of time series."""

    name: str
    """Name without PREFIX, and of a counter without `_total`."""
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    """Meaning of the metric, and advice for a high or low value."""
    values: Callable[[Snapshot, LoaderConfig], Values]
    labels: tuple[str, ...] = ()
    """Labels in addition to LOADER_LABELS."""

    @property
    def shown_name(self) -> str:
        """Name as queries have it."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")


def _fetched(name: str) -> Callable[[Snapshot, LoaderConfig], Values]:
    """Return a function that takes one of the fetchers' counters."""
    return lambda found, _: {(): found.fetch.get(name, 0.0)}


def _batch_waits(found: Snapshot, _: LoaderConfig) -> Values:
    return {(): found.stages["batch"].get_wait_s} if "batch" in found.stages else {}


def _stage_times(found: Snapshot, _: LoaderConfig) -> Values:
    return {
        (stage, name.removesuffix("_s")): durations
        for stage, times in found.stages.items()
        for name, durations in times.by_name().items()
        if durations.counts and stage != "batch"
    }


def _stage_items(found: Snapshot, _: LoaderConfig) -> Values:
    return {(stage,): times.items for stage, times in found.stages.items() if stage != "batch"}


def _batches(found: Snapshot, _: LoaderConfig) -> Values:
    return {(): found.stages["batch"].items if "batch" in found.stages else 0}


METRICS = (
    Metric(
        name="batches",
        kind="counter",
        text="Batches that the training loop took. Its rate is the rate of steps; a rate of 0 is a run that hangs.",
        values=_batches,
    ),
    Metric(
        name="images",
        kind="counter",
        text="Images in these batches, of this rank. Compare its rate with what `dataprep bench` measures.",
        values=lambda found, _: {(): found.images},
    ),
    Metric(
        name="skipped_images",
        kind="counter",
        text="Images that could not be read and were masked (on_error='skip'). If it grows: `dataprep verify --deep`.",
        values=lambda found, _: {(reason,): count for reason, count in found.skipped.items()},
        labels=("reason",),
    ),
    Metric(
        name="batch_wait_seconds",
        kind="histogram",
        text="Waits of the training loop for a batch. The rate of its sum is the share of time lost to input: "
        "above 0.05, look at stage_seconds, or run `dataprep diagnose`.",
        values=_batch_waits,
    ),
    Metric(
        name="ready_batches",
        kind="gauge",
        text="Finished batches that wait to be taken. Always 0: the loader is too slow; near prefetch_batches: it "
        "is ahead, and training is the limit. With worker processes 1 means one or more.",
        values=lambda found, _: {(): found.ready_batches},
    ),
    Metric(
        name="prefetch_batches",
        kind="gauge",
        text="Setting prefetch_batches: the most batches that are made ahead. Raise it where steps take uneven times.",
        values=lambda _, config: {(): config.prefetch_batches},
    ),
    Metric(
        name="stage_seconds",
        kind="histogram",
        text="Work (busy) and waits for the stage before (get_wait) and after (put_wait), of plan a batch, of fetch "
        "and decode up to 32 images; transform is your part of decode, and cpu its CPU time. If the training loop "
        "waits, much get_wait of fetch means that storage is slow: raise reads_in_flight or set cache_dir; much busy "
        "of decode means that cores are the limit: raise threads or processes, or make a slow transform faster.",
        values=_stage_times,
        labels=("stage", "activity"),
    ),
    Metric(
        name="stage_items",
        kind="counter",
        text="Images that passed a stage. Fewer of decode than of fetch: some were skipped.",
        values=_stage_items,
        labels=("stage",),
    ),
    Metric(
        name="fetch_requests",
        kind="counter",
        text="Reads from the bucket or disk. A bucket charges for each; many for few bytes: raise block_bytes.",
        values=_fetched("requests"),
    ),
    Metric(
        name="fetched_bytes",
        kind="counter",
        text="Bytes that were read from the bucket or disk, without the cache. If the rate is near the limit of the "
        "network or disk: set cache_dir for a bucket, or store smaller images with `dataprep convert`.",
        values=_fetched("bytes_read"),
    ),
    Metric(
        name="cache_hits",
        kind="counter",
        text="Reads that the cache on the disk answered. From the second epoch on few of all reads: raise cache_bytes.",
        values=_fetched("cache_hits"),
    ),
    Metric(
        name="retries",
        kind="counter",
        text="Reads that were sent again after 408, 429, 5xx or a broken connection. If it grows steadily, the bucket "
        "throttles: lower reads_in_flight.",
        values=_fetched("retries"),
    ),
    Metric(
        name="hedged_reads",
        kind="counter",
        text="Slow reads that were sent a second time: at most 5 % of fetch_requests, and 5 more. Near that: the "
        "bucket's latency is uneven.",
        values=_fetched("hedges"),
    ),
    Metric(
        name="hedged_reads_won",
        kind="counter",
        text="Hedged reads that ended before the slow one: waits that hedging saved.",
        values=_fetched("hedges_won"),
    ),
    Metric(
        name="fetch_blocked_seconds",
        kind="counter",
        text="Time for which reading ahead waited for prefetch_bytes. High while training waits: raise prefetch_bytes.",
        values=_fetched("blocked_s"),
    ),
    Metric(
        name="held_bytes",
        kind="gauge",
        text="Bytes of encoded images held or in flight from a bucket. Near prefetch_bytes, which worker processes "
        "share, reading ahead waits.",
        values=_fetched("held_bytes"),
    ),
    Metric(
        name="epoch",
        kind="gauge",
        text="Epoch of the next batch. It falls where a run resumed from an older state.",
        values=lambda found, _: {(): found.epoch},
    ),
    Metric(
        name="batch",
        kind="gauge",
        text="Number of the next batch, of training counted over all epochs. Ranks that differ by more than "
        "prefetch_batches do not train together.",
        values=lambda found, _: {(): found.batch},
    ),
)


class Observed(Protocol):
    """A loader whose counters are served."""

    config: LoaderConfig

    def snapshot(self) -> Snapshot:
        """Return everything that the loader counts; any thread may call this."""


class _Server:
    """A server on one port, for all loaders that name it."""

    def __init__(self, address: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self.loaders: list[Registration] = []
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self.http, self._thread = start_http_server(port, address, registry)
        except (OSError, UnicodeError) as error:
            raise UsageError(_refused(address, port, error)) from error
        self.port = int(self.http.server_port)
        self.place = address, self.port
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}/metrics"

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
        self.http.shutdown()
        self._thread.join()
        self.http.server_close()


_servers: dict[tuple[str, int], _Server] = {}
"""All servers of this process by address and port."""
_lock = threading.Lock()


def _forget() -> None:
    """Give up all servers in a process that was just forked: it inherits their sockets, but not their threads."""
    global _lock
    _lock = threading.Lock()
    for server in _servers.values():
        with suppress(OSError):
            server.http.socket.close()
    _servers.clear()


os.register_at_fork(after_in_child=_forget)


class Registration:
    """A loader that is being served, which its server does not keep alive; `serve` makes it."""

    def __init__(self, server: _Server, loader: Observed, split: str) -> None:
        self._server, self.loader, self.split, self.url = server, weakref.ref(loader), split, server.url
        taken = {each.number for each in server.loaders}
        self.number: int = next(number for number in range(len(taken) + 1) if number not in taken)
        """Lowest number that no other open loader of the server has."""
        server.loaders.append(self)

    def close(self) -> None:
        """Stop serving this loader, and end the server if it was the last one; a second call does nothing."""
        server = self._server
        with _lock:
            if self not in server.loaders:
                return
            server.loaders.remove(self)
            if not server.loaders and _servers.get(server.place) is server:
                del _servers[server.place]
                server.close()


def serve(loader: Observed, split: str, address: str, port: int) -> Registration:
    """Serve a loader's metrics, labelled with the split, until the registration is closed or the loader is gone.

    Raises:
        UsageError: The package that writes the format is not installed, or the port is not available.
    """
    if find_spec("prometheus_client") is None:
        raise UsageError(f"metrics_port needs prometheus_client, which is not installed: {install_hint('metrics')}")
    with _lock:
        server = _servers.get((address, port)) if port else None
        if server is None:
            server = _Server(address, port)
            _servers[server.place] = server
        registration = Registration(server, loader, split)
    gone = weakref.finalize(loader, _close_later, registration)
    gone.atexit = False
    return registration


def _close_later(registration: Registration) -> None:
    """Close a registration in a new thread, because the garbage collector may run in any, even in the server's."""
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


def _family(metric: Metric, found: Sequence[tuple[tuple[str, ...], LoaderConfig, Snapshot]]) -> Any:
    """Return a metric with its values of all loaders."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"histogram": HistogramMetricFamily, "counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    family = kinds[metric.kind](PREFIX + metric.name, metric.text, labels=(*LOADER_LABELS, *metric.labels))
    for of_loader, config, snapshot in found:
        for own, value in metric.values(snapshot, config).items():
            labels = (*of_loader, *own)
            if isinstance(value, Durations):
                family.add_metric(labels, buckets=_buckets(value), sum_value=value.sum_s)
            else:
                family.add_metric(labels, value)
    return family


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    counts = durations.cumulative(BUCKETS_S)
    bounds = [str(bound) for bound in BUCKETS_S]
    return [*zip(bounds, counts, strict=True), ("+Inf", durations.count)]
