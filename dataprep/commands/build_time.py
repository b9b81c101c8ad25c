"""Says how long a build will take, for `--dry-run`, from a few of its images that are tried."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.builder.duration import Duration, Tried, build_duration
from dataprep.builder.recipe import Planned
from dataprep.errors import DataprepError
from dataprep.host.cpu import available_cores, cpu_quota
from dataprep.messages import counted, duration, human_bytes

_SHOWN_S = 60.0
"""Shorter estimates are no number, because start and end of a build take seconds themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crew:
    """The workers of a build, as far as they are known before it."""

    workers: int
    cores: float
    """Cores that all of them share."""
    text: str


def crew_here(workers: int, parts: int = 1) -> Crew:
    """Return the workers of a build on this machine, or of all its parts on machines like this one."""
    cores = min(available_cores(), cpu_quota())
    together = f" in each of {parts} parts" if parts > 1 else ""
    return Crew(workers=workers * parts, cores=cores * parts, text=counted(workers, "worker") + together)


ONE_CORE = Crew(workers=1, cores=1, text="one core like those of this machine")
"""What stands for the workers of a cluster, whose number and speed are not known before the build."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTime:
    """Estimate of a build's time, once its originals are listed."""

    crew: Crew
    tried: Tried
    duration: Duration

    @property
    def line(self) -> str:
        """The estimate in one line for the user."""
        tried, seconds = self.tried, self.duration.seconds
        length = f"about {duration(seconds)}" if seconds >= _SHOWN_S else "less than a minute"
        reading_ms = 1000 * max(tried.wait_s, tried.transfer_s) / tried.images
        limit = f", limited by reading, {reading_ms:.1f} ms an image" if self.duration.reading_limits else ""
        if self.duration.writing_limits:
            limit = f", limited by writing, {1000 * (tried.sync_s or 0.0) / tried.images:.1f} ms an image"
        left_out = "writing was not tried and adds to it; " if tried.sync_s is None else ""
        return (
            f"  time: {length} with {self.crew.text}{limit} ({1000 * tried.cpu_s / tried.images:.1f} ms of CPU and "
            f"{human_bytes(tried.num_bytes / tried.images)} an image, {counted(tried.images, 'image')} sampled); "
            f"{left_out}other programs and a slow disk or network can make it longer"
        )

    def document(self) -> dict[str, object]:
        """Return the estimate as JSON values."""
        tried = self.tried
        return {
            "seconds": round(self.duration.seconds, 1),
            "workers": self.crew.workers,
            "limited_by_reading": self.duration.reading_limits,
            "limited_by_writing": self.duration.writing_limits,
            "cpu_ms_per_image": round(1000 * tried.cpu_s / tried.images, 4),
            "wait_ms_per_image": round(1000 * tried.wait_s / tried.images, 4),
            "transfer_ms_per_image": round(1000 * tried.transfer_s / tried.images, 4),
            "sync_ms_per_image": None if tried.sync_s is None else round(1000 * tried.sync_s / tried.images, 4),
            "bytes_per_image": round(tried.num_bytes / tried.images),
            "images_sampled": tried.images,
        }


@dataclass(frozen=True, slots=True)
class UnknownTime:
    """The reason for which a build's time is not estimated."""

    why: str

    @property
    def line(self) -> str:
        """The reason in one line for the user."""
        return f"  time: not estimated: {self.why}"

    def document(self) -> dict[str, object]:
        """Return the reason as JSON values."""
        return {"seconds": None, "unknown": self.why}


def planned_time(planned: Planned, crew: Crew) -> PlannedTime | UnknownTime | None:
    """Try some images of a build, and estimate its time; None where it depends on servers of others."""
    if planned.try_images is None:
        return None
    try:
        tried = planned.try_images()
    except DataprepError as error:
        return UnknownTime(str(error))
    plan = planned.plan
    images = sum(sum(split.shard_samples) for split in plan.splits)
    found = build_duration(tried, images, shards=plan.num_shards, workers=crew.workers, cores=crew.cores)
    return PlannedTime(crew=crew, tried=tried, duration=found)
