"""The part of `dataprep plan-input` about the requests that a bucket gets, more of which it serves only as it grows."""

from __future__ import annotations

from dataclasses import dataclass

from dataprep.commands.plan_data import is_loose, requests_per_image
from dataprep.commands.plan_places import PACK, first_requests_per_s
from dataprep.commands.region_report import READ_BYTES
from dataprep.messages import human_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketLoad:
    """What a bucket serves while a dataset is read at some rate."""

    images_per_s: float
    """Rate of all hosts together."""
    bytes_per_image: float
    num_bytes: float
    """Size of one pass over the data."""
    objects: int | None
    """Number of objects, all of one size; None for shards that are much larger than a read."""
    hns: bool
    """Whether the bucket has a hierarchical namespace."""

    @property
    def requests_per_s(self) -> float:
        """Requests a second that the bucket gets at the rate."""
        images = self.num_bytes / self.bytes_per_image
        return self.images_per_s * requests_per_image(self.num_bytes, images, self.objects)

    @property
    def first_requests_per_s(self) -> float:
        """Requests a second that the bucket serves before it has grown."""
        return first_requests_per_s(hns=self.hns)

    @property
    def line(self) -> str:
        """Bandwidth and requests, with a note if a new bucket does not serve as many."""
        first = self.first_requests_per_s
        grows = f", beyond the {first:,.0f} of a bucket that has not grown yet" if self.requests_per_s > first else ""
        size = human_bytes(self._object_bytes) if self._is_loose else f"{READ_BYTES >> 20} MiB"
        gbps = self.images_per_s * self.bytes_per_image * 8e-9
        return f"{gbps:,.2f} Gbit/s in {self.requests_per_s:,.0f} requests/s of {size}{grows}"

    @property
    def loose(self) -> str:
        """Sentence about objects that are read with more requests than a new bucket serves; empty if they are not."""
        if not self._is_loose or self.requests_per_s <= self.first_requests_per_s:
            return ""
        in_shards = self.images_per_s * self.bytes_per_image / READ_BYTES
        return (
            f"But objects of {human_bytes(self._object_bytes)} take {self.requests_per_s:,.0f} requests/s, of which a "
            f"bucket serves about {self.first_requests_per_s:,.0f} at first, and more only as the load grows: pack "
            f"them into shards (dataprep build folder), which take {in_shards:,.0f}."
        )

    def document(self) -> dict[str, object]:
        """Return the requests as JSON values, which docs/capacity.md describes."""
        return {
            "requests_per_s": self.requests_per_s,
            "first_requests_per_s": self.first_requests_per_s,
            "command": PACK if self.loose else None,
        }

    @property
    def _object_bytes(self) -> float:
        return self.num_bytes / (self.objects or 1)

    @property
    def _is_loose(self) -> bool:
        return self.objects is not None and is_loose(self.num_bytes, self.objects)
