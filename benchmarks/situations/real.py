"""Listed causes, which some situations have as well: slow requests, a narrow link, costly images, too few workers.

Their severity is drawn relative to the machine's own rates, so that the second slowest stage is MIN_RATIO to MAX_RATIO
times as fast as the slowest. F, P, G: rates of fetch, preparation and model, images/s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.situations.draw import Draw, KnownRates, simulated
from benchmarks.situations.situation import Situation

MODEL_SIZE = 64
"""Side of images for real models, pixels: their steps take a tenth of a second on a core, as long as slow requests."""
MODELS = {"tiny_cnn": 32, "mobilenet_v3_small": 16, "resnet18": 16}
"""Models and their usual batch sizes."""
SERVICE_MS = 2.0
"""Time that the emulator takes for a request in addition to the latency that is set."""
ENDLESS = "simulated:1e12"


def _plain(**settings: Any) -> Situation:
    return replace(Situation(id="", cause="", is_real=True, device=ENDLESS), **settings)


def _in_bucket(draw: Draw, cores: int, **settings: Any) -> Situation:
    fmt = draw.one_of(("webdataset", "tfrecord", "imagefolder"))
    return _plain(latency_ms=0.0, threads=cores, prefetch_batches=4, format=fmt, **settings)


def slow_requests(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """F = P / ratio by the latency of few requests at a time."""
    bare = _in_bucket(draw, cores)
    reads, ready = draw.one_of((4, 8, 16)), rates.loader(bare)
    return _delayed(bare, reads, ready / draw.ratio(), simulated(ready * draw.ratio()))


def narrow_link_model(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """F = G / ratio by bandwidth, of a real model."""
    model = _with_model(draw, _in_bucket(draw, cores), rates)
    return _narrowed(model, rates, rates.device(model) / draw.ratio(), draw, "cpu")


def large_images(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """P = G / ratio of photographs 2,000 pixels wide."""
    return _before_device(draw, rates, "images 2,000 pixels wide", _plain(dataset="large", threads=cores))


def one_thread(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """P = G / ratio of one decoding thread."""
    fmt = draw.one_of(("webdataset", "tfrecord", "imagefolder"))
    return _before_device(draw, rates, "one thread decodes", _plain(threads=1, format=fmt))


def library_decoder(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """P = G / ratio of the libraries' decoder."""
    return _before_device(draw, rates, "the library decoder", _plain(threads=cores, decoder="library"))


def _before_device(draw: Draw, rates: KnownRates, cause: str, bare: Situation) -> Situation:
    """Put a loader in front of a device that could take `ratio` times its rate."""
    return replace(bare, cause=cause, device=simulated(rates.loader(bare) * draw.ratio()))


def _with_model(draw: Draw, bare: Situation, rates: KnownRates) -> Situation:
    """Add a model whose rate is below half of the loader's; the last model if none is."""
    bare = replace(bare, image_size=MODEL_SIZE)
    ready = rates.loader(bare)
    models = [replace(bare, device="cpu", model=name, batch_size=size) for name, size in MODELS.items()]
    slow = [model for model in models if rates.device(model) < ready / 2]
    return draw.one_of(slow or models[-1:])


def _delayed(bare: Situation, reads: int, images_per_s: float, device: str) -> Situation:
    slow_ms = max(SERVICE_MS, 1e3 * reads / images_per_s - SERVICE_MS)
    cause = f"{reads} requests at a time, {slow_ms:.0f} ms each"
    return replace(bare, cause=cause, latency_ms=slow_ms, reads_in_flight=reads, device=device)


def _narrowed(bare: Situation, rates: KnownRates, images_per_s: float, draw: Draw, device: str) -> Situation:
    bytes_per_s = images_per_s * rates.image_bytes(bare)
    cause, slow_ms = f"a link of {bytes_per_s / 1e6:.1f} MB/s", draw.log_uniform(2, 20)
    return replace(bare, cause=cause, latency_ms=slow_ms, bandwidth_bytes_per_s=bytes_per_s, device=device)
