"""Costs of images with the figures of the arithmetic by hand, whatever the table of a release says."""

from __future__ import annotations

from dataprep.cloud.capacity import ImageCost, cost_from_table, costs_of
from dataprep.cloud.prices import rows
from tests.support.markdown import ROOT

COSTS = costs_of(rows((ROOT / "tests/dataprep/cloud/costs.csv").read_text(encoding="utf-8").splitlines()))


def cost_by_hand(loader: str, image_size: int, bytes_per_image: float) -> ImageCost:
    """The cost of an image by the table of these tests."""
    return cost_from_table(loader, image_size, bytes_per_image, COSTS)
