"""Situations whose causes were in no list of the diagnosis when this was written; some have a listed one as well.

Severities are drawn relative to the machine's own rates. P, G: rates of preparation and model without the cause,
images/s. `possible_changes` are still all that the user can make; often none of them helps, because the cause is
outside the loader, and then that is the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.situations.draw import Draw, KnownRates, simulated
from benchmarks.situations.outside import Outside
from benchmarks.situations.real import MODEL_SIZE, MODELS, one_thread, slow_requests
from benchmarks.situations.real import large_images as listed_large_images
from benchmarks.situations.real import library_decoder as listed_library_decoder
from benchmarks.situations.real import narrow_link_model as listed_narrow_link
from benchmarks.situations.situation import Situation
from benchmarks.situations.transforms import garbage, machine_lock

CALIBRATED_OBJECTS = 20_000
"""Objects left behind for an image while the speed of collecting them is measured: some milliseconds."""
SLEEP_OVERHEAD_US = 60
READS_PER_IMAGE = 1.0
"""Requests that an image of 105 kB takes of a disk; more images of a shard share one."""
MEGABYTE = 1e6


def slow_disk(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """The disk carries P / ratio images."""
    bare = _on_disk(draw, cores, ("webdataset", "tfrecord"))
    bytes_per_s = rates.loader(bare) / draw.ratio() * rates.image_bytes(bare)
    cause = f"a disk of {bytes_per_s / MEGABYTE:.0f} MB/s, no page cache"
    return _planted(draw, rates, bare, cause, Outside(disk_bytes_per_s=bytes_per_s))


def disk_requests(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """The disk answers as many requests as P / ratio images need."""
    bare = _on_disk(draw, cores, ("imagefolder", "webdataset"))
    reads_per_s = READS_PER_IMAGE * rates.loader(bare) / draw.ratio()
    cause = f"a disk of {reads_per_s:.0f} requests/s, no page cache"
    return _planted(draw, rates, bare, cause, Outside(disk_reads_per_s=reads_per_s))


def shared_disk(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """The disk would carry P * 1 to 2 images, but others read it, too."""
    bare, others = _on_disk(draw, cores, ("webdataset", "tfrecord")), draw.one_of((1, 2, 4))
    bytes_per_s = rates.loader(bare) * draw.log_uniform(1, 2) * rates.image_bytes(bare)
    cause = f"{others} others read the disk of {bytes_per_s / MEGABYTE:.0f} MB/s"
    return _planted(draw, rates, bare, cause, Outside(disk_bytes_per_s=bytes_per_s, disk_neighbours=others))


def paging(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """Memory is short: the run's own is paged out, the page cache is lost, and the disk is an ordinary one."""
    bare = draw.one_of((_plain(cores), _with_model(draw, cores)))
    paged_out, disk = draw.log_uniform(100, 600) * MEGABYTE, draw.log_uniform(60, 250) * MEGABYTE
    cause = f"{paged_out / MEGABYTE:.0f} MB/s paged out, a disk of {disk / MEGABYTE:.0f} MB/s"
    return _planted(draw, rates, bare, cause, Outside(paged_out_bytes_per_s=paged_out, disk_bytes_per_s=disk))


def many_omp_threads(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """A model computes with more threads than there are cores."""
    threads = cores * draw.one_of((1, 2, 4, 8))
    cause = f"{threads} OpenMP threads on {cores} cores"
    return _planted(draw, rates, _with_model(draw, cores), cause, Outside(omp_threads=threads))


def quota(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """The run may use 1 / ratio of the cores' time."""
    allowed = cores / draw.ratio()
    bare = draw.one_of((_plain(cores), _with_model(draw, cores)))
    return _planted(draw, rates, bare, f"a quota of {allowed:.2f} of {cores} cores", Outside(cores=allowed))


def pinned(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """A launcher has pinned the run to half of the cores or fewer."""
    count = max(1, cores // draw.one_of((2, 4)))
    bare = _plain(draw.one_of((1, cores, 4 * cores)))
    return _planted(draw, rates, bare, f"pinned to {count} of {cores} cores", Outside(pinned_to=count))


def neighbour(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """Other processes compute on the same cores, at a nice value."""
    return _beside(draw, rates, cores, "loop", draw.one_of((-5, 0, 5, 10, 19)))


def bursts(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """Other processes work and rest in turn."""
    return _beside(draw, rates, cores, "burst", draw.one_of((0, 10)))


def copies(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """Other processes copy memory."""
    return _beside(draw, rates, cores, "memory", draw.one_of((0, 10)))


def _beside(draw: Draw, rates: KnownRates, cores: int, what: str, nice: int) -> Situation:
    count, bare = cores * draw.one_of((1, 2)), draw.one_of((_plain(cores), _with_model(draw, cores)))
    outside = Outside(neighbours=count, neighbour=what, neighbour_nice=nice)
    return _planted(draw, rates, bare, f"{count} neighbours ({what}), nice {nice}", outside)


def stolen(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """Processes of real-time priority take a share of every core."""
    bare = draw.one_of((_plain(cores), _with_model(draw, cores)))
    return _planted(draw, rates, bare, *_steal(draw))


def _steal(draw: Draw) -> tuple[str, Outside]:
    share, period_ms = draw.log_uniform(0.15, 0.7), draw.log_uniform(5, 80)
    cause = f"{share:.0%} of every core is stolen"
    return cause, Outside(stolen_share=round(share, 3), stolen_period_ms=round(period_ms, 1))


def garbage_collection(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """A transform leaves garbage behind that the interpreter collects while it holds its lock."""
    bare = _plain(cores)
    slow = replace(bare, transform=garbage(CALIBRATED_OBJECTS))
    rate = rates.loader(bare) / draw.log_uniform(2, 4)
    objects = round(CALIBRATED_OBJECTS * rates.loader(slow) / rate)
    cause = f"{objects} objects of garbage an image"
    return replace(bare, cause=cause, transform=garbage(objects), device=simulated(rate * draw.ratio()))


def lock_of_machine(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """A transform waits with a lock that all processes share."""
    bare = _plain(cores)
    rate = rates.loader(bare) / draw.log_uniform(2, 6)
    transform = machine_lock(max(1, round(1e6 / rate) - SLEEP_OVERHEAD_US))
    cause = f"a lock of the machine for {1e3 / rate:.1f} ms"
    return replace(bare, cause=cause, transform=transform, device=simulated(rate * draw.ratio()))


def proxy(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """A proxy before the bucket gives every connection, or all together, too little for P / ratio images."""
    fmt = draw.one_of(("webdataset", "tfrecord"))
    bare = replace(_plain(cores), latency_ms=2.0, prefetch_batches=4, format=fmt)
    bytes_per_s = rates.loader(bare) / draw.ratio() * rates.image_bytes(bare)
    if draw.one_of((True, False)):
        cause = f"a proxy of {bytes_per_s / MEGABYTE:.0f} MB/s"
        return _planted(draw, rates, bare, cause, Outside(proxy_bytes_per_s=bytes_per_s))
    reads = draw.one_of((4, 8))
    cause = f"a proxy of {bytes_per_s / reads / MEGABYTE:.1f} MB/s a connection"
    outside = Outside(connection_bytes_per_s=bytes_per_s / reads)
    return _planted(draw, rates, replace(bare, reads_in_flight=reads), cause, outside)


def quota_and_one_thread(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """One thread decodes, and a quota lets it use a part of a core more."""
    allowed = draw.log_uniform(0.6, 0.8 * cores)
    return _and(one_thread(draw, rates, cores), f"a quota of {allowed:.2f} cores", Outside(cores=allowed))


def disk_and_library(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """The libraries' decoder, and a disk that carries about as much."""
    listed = listed_library_decoder(draw, rates, cores)
    bytes_per_s = rates.loader(listed) * draw.log_uniform(0.5, 2) * rates.image_bytes(listed)
    return _and(listed, f"a disk of {bytes_per_s / MEGABYTE:.0f} MB/s", Outside(disk_bytes_per_s=bytes_per_s))


def neighbour_and_requests(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """Few slow requests, and neighbours."""
    nice = draw.one_of((0, 10))
    outside = Outside(neighbours=cores, neighbour_nice=nice)
    return _and(slow_requests(draw, rates, cores), f"{cores} neighbours, nice {nice}", outside)


def omp_and_link(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """A narrow link before a model that computes with too many threads."""
    threads = cores * draw.one_of((2, 4))
    return _and(listed_narrow_link(draw, rates, cores), f"{threads} OpenMP threads", Outside(omp_threads=threads))


def stolen_and_large(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """Large images, and stolen time."""
    return _and(listed_large_images(draw, rates, cores), *_steal(draw))


def _plain(threads: int) -> Situation:
    return Situation(id="", cause="", is_real=True, device="", threads=threads)


def _on_disk(draw: Draw, cores: int, formats: tuple[str, ...]) -> Situation:
    return replace(_plain(cores), format=draw.one_of(formats))


def _with_model(draw: Draw, cores: int) -> Situation:
    name = draw.one_of(tuple(MODELS))
    return replace(_plain(cores), device="cpu", model=name, batch_size=MODELS[name], image_size=MODEL_SIZE)


def _planted(draw: Draw, rates: KnownRates, bare: Situation, cause: str, outside: Outside) -> Situation:
    """Add a cause; a situation without a model gets a device that could take `ratio` times the loader's rate."""
    device = bare.device or simulated(rates.loader(bare) * draw.ratio())
    return replace(bare, cause=f"{cause}{f', {bare.model}' if bare.model else ''}", device=device, outside=outside)


def _and(listed: Situation, cause: str, outside: Outside) -> Situation:
    return replace(listed, cause=f"{listed.cause}; {cause}", outside=outside)


COMBINED: dict[str, tuple[int, Callable[[Draw, KnownRates, int], Situation]]] = {
    "quota-and-thread": (3, quota_and_one_thread),
    "disk-and-library": (3, disk_and_library),
    "neighbour-and-requests": (3, neighbour_and_requests),
    "omp-and-link": (2, omp_and_link),
    "stolen-and-large": (3, stolen_and_large),
}
"""Kinds with a listed cause and an unlisted one."""
UNSEEN: dict[str, tuple[int, Callable[[Draw, KnownRates, int], Situation]]] = {
    "disk": (8, slow_disk),
    "disk-requests": (6, disk_requests),
    "disk-shared": (6, shared_disk),
    "paging": (6, paging),
    "omp": (8, many_omp_threads),
    "quota": (8, quota),
    "pinned": (5, pinned),
    "neighbour": (10, neighbour),
    "bursts": (4, bursts),
    "copies": (4, copies),
    "stolen": (6, stolen),
    "garbage": (5, garbage_collection),
    "lock": (4, lock_of_machine),
    "proxy": (6, proxy),
    **COMBINED,
}
"""Number of situations of each kind in a hundred, and the function that plants one."""
