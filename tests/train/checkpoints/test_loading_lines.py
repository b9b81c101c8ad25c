"""Lines that load an exported file; tests/train/test_export.py runs them with the networks."""

from __future__ import annotations

import ast

import pytest

from train.checkpoints.encoder_weights import Statistics
from train.checkpoints.loading_lines import loading_lines

PIXELS = Statistics((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
TIMM = "timm.models.VisionTransformer(num_heads=2)"


def lines(output: str, network: str | None = TIMM, *, names: str = "timm", pixels: Statistics | None = PIXELS) -> str:
    found = "\n".join(loading_lines(output, network, names=names, image_size=32, pixels=pixels))
    ast.parse(found)
    return found


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("a 'b'.safetensors", """load_file("a 'b'.safetensors")"""),
        ("/x/a.pth", """torch.load('/x/a.pth', weights_only=True)["model"]"""),
        ("gs://bucket/x/a.safetensors", "load(open_storage('gs://bucket/x').read('a.safetensors'))"),
        ("gs://bucket/a.pth", "io.BytesIO(open_storage('gs://bucket').read('a.pth'))"),
    ],
)
def test_every_format_and_place_is_read_by_its_own_expression(output, expected):
    assert expected in lines(output)


def test_imports_come_first_and_once():
    imports, *_ = lines("gs://bucket/a.pth").split("\n\n")
    assert imports.splitlines() == [
        "import io", "import timm", "import torch", "from dataprep.storage import open_storage",
    ]  # fmt: skip


def test_the_statistics_are_those_that_are_known():
    assert "mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)" in lines("a.pth")
    unknown = lines("a.pth", pixels=None)
    assert "mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)" in unknown
    assert "# The source does not say by which mean" in unknown


def test_without_a_network_the_tensors_are_loaded_alone():
    assert lines("a.safetensors", None).splitlines() == [
        "from safetensors.torch import load_file", "", "tensors = load_file('a.safetensors')",
    ]  # fmt: skip


def test_an_unknown_number_of_heads_is_asked_for():
    assert "# HEADS is the number of heads" in lines("a.pth", "timm.models.VisionTransformer(num_heads=HEADS)")
    assert "HEADS" not in lines("a.pth")
