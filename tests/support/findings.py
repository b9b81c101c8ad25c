"""A diagnosis and a table of rates as a user may see them, for whoever shows such values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from loaders.bench.run import BenchSection, BenchTable, StageShare
from loaders.diagnosis.findings import Applied, Bound, Diagnosis, Fix, StageRate, StepTimes, TransformCost

BATCH_SIZE = 256
OBSERVED_IMAGES_PER_S = 790.0
COMPUTE_IMAGES_PER_S = 1840.0
SETTINGS = {"batch_size": BATCH_SIZE, "image_size": 224, "threads": 3, "processes": 0, "prefetch_batches": 3}
MACHINE = {
    "cores": 8,
    "busy_cores_before": 0.1,
    "processor": "some",
    "platform": "Linux-6.1.0-x86_64-with-glibc2.36",
    "python": "3.11.9",
    "codecs": {"pillow": "12.3.0", "simplejpeg": "1.9.0"},
    "dataprep": "0.1.0",
    "measured": "2026-11-01T12:00:00Z",
}


def diagnosis() -> Diagnosis:
    """Three decoding threads feed an accelerator that could take more than twice as much; it was tried with eight."""
    timeline = _timeline(steps=120)
    return Diagnosis(
        url="gs://imagenet-europe-west4/imagenet-webdataset",
        device="xla (mae_vit_base_patch16)",
        verdict="You are waiting for images to be decoded: 790 images/s, 43% of what the device could take. "
        "Decode with 8 threads (--threads 8): 1,790 images/s, +127%.",
        limit="prepare",
        observed_images_per_s=OBSERVED_IMAGES_PER_S,
        predicted_images_per_s=812.0,
        contention="",
        utilisation=OBSERVED_IMAGES_PER_S / COMPUTE_IMAGES_PER_S,
        stages=(
            StageRate(name="fetch", images_per_s=2450.0, cpu_s_per_image=0.00031),
            StageRate(name="prepare", images_per_s=812.0, cpu_s_per_image=0.00362),
            StageRate(name="transfer", images_per_s=9600.0, cpu_s_per_image=0.00004),
            StageRate(name="compute", images_per_s=COMPUTE_IMAGES_PER_S, cpu_s_per_image=0.00012),
        ),
        wait_share=0.55,
        transfer_share=0.02,
        compute_share=0.43,
        timeline=timeline,
        fixes=_FIXES,
        applied=Applied(
            name="workers", settings={"threads": 8}, predicted_images_per_s=1830.0, measured_images_per_s=1738.0
        ),
        bytes_per_image=112_903.4,
        settings=dict(SETTINGS),
        machine=dict(MACHINE),
        attainable_images_per_s=1840.0,
        allocation={"fetch": 0.6, "prepare": 6.7, "transfer": 0.1, "compute": 0.2},
    )


def fix_of(name: str, images_per_s: float, needs: Any = "restart", *, is_tried: bool = False) -> Fix:
    """Return a change of a run that makes 100 images/s."""
    rates = {"images_per_s": images_per_s, "predicted_images_per_s": images_per_s, "gain": images_per_s / 100}
    return replace(_FIXES[0], name=name, settings={}, needs=needs, is_tried=is_tried, **rates)


def transform_cost() -> TransformCost:
    """Return a transform that takes most of preparing; a run without it was tried."""
    return TransformCost(
        name="mytrans:slow",
        s_per_image=0.00231,
        cpu_s_per_image=0.00212,
        prepare_s_per_image=0.00362,
        holds_lock=False,
        without=Bound(images_per_s=1640.0, predicted_images_per_s=1700.0, is_tried=True, gain=2.076, limit="prepare"),
    )


def bench_table() -> BenchTable:
    """Return the rates of the loader on one dataset."""
    section = BenchSection(
        url="shards/imagenet",
        split="train",
        layout="webdataset",
        samples=4000,
        bytes_per_image=112_903.4,
        images_per_s=1562.0,
        slowest_images_per_s=1541.0,
        fastest_images_per_s=1580.0,
        mb_per_s=176.3,
        cpu_ms_per_image=1.27,
        first_batch_s=0.7,
        largest_mb=268.0,
        sum_mb=268.0,
        rounds_images_per_s=(1541.0, 1562.0, 1580.0),
        stages=(
            StageShare(name="fetch", busy_share=0.06, get_wait_share=0.0, put_wait_share=0.94, busy_ms_per_image=0.04),
            StageShare(name="decode", busy_share=0.97, get_wait_share=0.01, put_wait_share=0.02, busy_ms_per_image=1.2),
        ),
    )
    settings = {"batch_size": 128, "image_size": 224, "workers": 2, "rounds": 3, "seconds": 10.0, "batches": None}
    return BenchTable(sections=(section,), settings=settings, machine=dict(MACHINE) | {"cores": 2})


_FIXES = (
    Fix(
        name="workers",
        settings={"threads": 8},
        needs="restart",
        images_per_s=1790.0,
        predicted_images_per_s=1830.0,
        is_tried=True,
        gain=2.27,
        limit="compute",
        advice="Decode with 8 threads (--threads 8)",
    ),
    Fix(
        name="resize",
        settings={"short_side": 256},
        needs="rebuild",
        images_per_s=1240.0,
        predicted_images_per_s=1240.0,
        is_tried=False,
        gain=1.57,
        limit="prepare",
        advice="Store the images at a short side of 256 px: dataprep build imagenet --resize 256",
    ),
    Fix(
        name="decoder",
        settings={"decoder": "extension"},
        needs="restart",
        images_per_s=980.0,
        predicted_images_per_s=980.0,
        is_tried=False,
        gain=1.24,
        limit="prepare",
        advice="Decode the crop alone: --decoder extension",
    ),
)


def _timeline(steps: int) -> tuple[StepTimes, ...]:
    """Batches come unevenly; every 25th step waits for three times as long."""
    timeline, started_s = [], 0.0
    for step in range(steps):
        wait_s = (
            0.178 * (1 + 0.25 * math.sin(1.7 * step) + 0.15 * math.sin(0.37 * step)) * (3 if step % 25 == 17 else 1)
        )
        compute_s = BATCH_SIZE / COMPUTE_IMAGES_PER_S * (1 + 0.01 * math.sin(2.9 * step))
        timeline.append(StepTimes(started_s=started_s, wait_s=wait_s, transfer_s=0.006, compute_s=compute_s))
        started_s += wait_s + 0.006 + compute_s
    return tuple(timeline)
