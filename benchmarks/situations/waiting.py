"""Situations whose devices and stages only wait, so that their rates are known. The images are small, cheap to load.

G, H: rates of the device and of the transfer to it; T: rate of a slow stage of the loader; images/s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.situations.draw import Draw, KnownRates, simulated
from benchmarks.situations.situation import Situation
from benchmarks.situations.transforms import in_turn, side_by_side

SMALL_SIZE = 64
SLEEP_OVERHEAD_US = 60
"""Time by which `time.sleep` is late, microseconds."""


def _small(cores: int) -> Situation:
    bare = Situation(id="", cause="", is_real=False, device="simulated:1e12", image_size=SMALL_SIZE, threads=cores)
    return replace(bare, short_side=bare.short_side_needed)


def _pace(draw: Draw, rates: KnownRates, bare: Situation) -> float:
    """Return images/s that are so low that loading does not limit the run."""
    return rates.loader(bare) / draw.log_uniform(4, 10)


def slow_device(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """G = H / ratio, batches sent ahead."""
    bare = replace(_small(cores), transfer_ahead=2)
    rate = _pace(draw, rates, bare)
    return replace(bare, cause="a slow device", device=simulated(rate, transfer=rate * draw.ratio()))


def slow_transfer(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """H = G / ratio, batches sent when they are needed."""
    rate = _pace(draw, rates, _small(cores))
    device = simulated(rate * draw.ratio(), transfer=rate)
    return replace(_small(cores), cause="a slow transfer, not ahead", device=device)


def slow_transfer_ahead(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """H = G / ratio, batches sent ahead already."""
    rate = _pace(draw, rates, _small(cores))
    device = simulated(rate * draw.ratio(), transfer=rate)
    return replace(_small(cores), cause="a slow transfer, ahead", device=device, transfer_ahead=2)


def step_overhead(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """Each step costs 0.5 to 4 times what its images do; H = ratio times that."""
    bare = replace(_small(cores), batch_size=draw.one_of((8, 16)), transfer_ahead=2)
    rate, share = _pace(draw, rates, bare), draw.log_uniform(0.5, 4)
    overhead_ms = 1e3 * bare.batch_size / rate * share / (1 + share)
    device = simulated(rate * (1 + share), transfer=rate * draw.ratio(), step_ms=overhead_ms)
    return replace(bare, cause=f"{overhead_ms:.1f} ms a step, batches of {bare.batch_size}", device=device)


def transfer_overhead(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """Each transfer takes the time of a step multiplied or divided by `ratio`, and is not ahead."""
    bare = replace(_small(cores), batch_size=draw.one_of((8, 16)))
    rate, ratio = _pace(draw, rates, bare), draw.ratio()
    overhead_ms = 1e3 * bare.batch_size / rate * draw.one_of((ratio, 1 / ratio))
    device = simulated(rate, transfer_ms=overhead_ms)
    return replace(bare, cause=f"{overhead_ms:.1f} ms a transfer, batches of {bare.batch_size}", device=device)


def serial_stage(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """T = G / ratio of a transform that takes one image at a time."""
    rate = _pace(draw, rates, _small(cores))
    transform = in_turn(max(1, round(1e6 / rate) - SLEEP_OVERHEAD_US))
    return replace(
        _small(cores),
        cause=f"a serial transform of {1e3 / rate:.1f} ms",
        transform=transform,
        device=simulated(rate * draw.ratio()),
    )


def waiting_stage(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """T = G / ratio of a transform that waits in the only thread."""
    rate = _pace(draw, rates, _small(cores))
    transform = side_by_side(max(1, round(1e6 / rate) - SLEEP_OVERHEAD_US))
    cause = f"one thread, a transform of {1e3 / rate:.1f} ms"
    device = simulated(rate * draw.ratio())
    return replace(_small(cores), cause=cause, transform=transform, device=device, threads=1)


def combination(draw: Draw, rates: KnownRates, cores: int) -> Situation:
    """Device, transfer, a step's overhead and a serial transform, each drawn for itself."""
    bare = replace(_small(cores), batch_size=draw.one_of((8, 16, 32)), transfer_ahead=draw.one_of((0, 2)))
    rate = _pace(draw, rates, bare)
    step_ms = 1e3 * bare.batch_size / rate * draw.log_uniform(0.2, 1)
    device = simulated(rate * draw.ratio(), transfer=rate * draw.ratio(), step_ms=step_ms)
    transform = in_turn(max(1, round(1e6 / rate / draw.ratio()) - SLEEP_OVERHEAD_US))
    return replace(bare, cause="device, transfer, steps and transform", device=device, transform=transform)


WAITING: dict[str, tuple[int, Callable[[Draw, KnownRates, int], Situation]]] = {
    "device": (6, slow_device),
    "transfer": (6, slow_transfer),
    "transfer-ahead": (4, slow_transfer_ahead),
    "step-overhead": (6, step_overhead),
    "transfer-overhead": (6, transfer_overhead),
    "serial": (5, serial_stage),
    "waiting": (3, waiting_stage),
    "combination": (3, combination),
}
"""Number of situations of each kind in a hundred, and the function that plants one."""
