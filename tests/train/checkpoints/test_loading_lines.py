"""Lines that load an exported file; tests/train/test_export.py runs them with the networks."""

from __future__ import annotations

import ast

import pytest
import torch

from train.checkpoints.encoder_weights import Statistics, Weights
from train.checkpoints.loading_lines import loading_lines

PIXELS = Statistics((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
TIMM = "timm.models.VisionTransformer(num_heads=2)"


def weights(side: int = 32, *, class_token: bool = True, pixels: Statistics | None = PIXELS) -> Weights:
    tensors = {"patch_embed.proj.weight": torch.zeros(4, 3, 8, 8)}
    tensors |= {"cls_token": torch.zeros(1, 1, 4)} if class_token else {}
    tensors["pos_embed"] = torch.zeros(1, (side // 8) ** 2 + class_token, 4)
    return Weights("run.pth", tensors, None, pixels)


def lines(
    output: str,
    network: str | None = TIMM,
    *,
    names: str = "timm",
    source: Weights | None = None,
    num_classes: int = 0,
    has_classes: bool = False,
) -> str:
    found = "\n".join(
        loading_lines(
            output, network, names=names, weights=source or weights(), num_classes=num_classes, has_classes=has_classes
        )
    )
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
    unknown = lines("a.pth", source=weights(pixels=None))
    assert "mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)" in unknown
    assert "# The source does not say by which mean" in unknown


def test_without_a_network_the_tensors_are_loaded_alone():
    assert lines("a.safetensors", None).splitlines() == [
        "from safetensors.torch import load_file", "", "tensors = load_file('a.safetensors')",
    ]  # fmt: skip


def test_an_unknown_number_of_heads_is_asked_for():
    assert "# HEADS is the number of heads" in lines("a.pth", "timm.models.VisionTransformer(num_heads=HEADS)")
    assert "HEADS" not in lines("a.pth")


@pytest.mark.parametrize(
    ("side", "class_token", "short_side"), [(224, True, 256), (224, False, 256), (384, True, 384), (384, False, 439)]
)
def test_a_comment_says_how_a_picture_is_prepared_as_in_the_evaluation(side, class_token, short_side):
    found = lines("a.pth", source=weights(side, class_token=class_token))
    assert (
        f"# As in an evaluation: resize the short side to {short_side} pixels (bicubic, antialiased), then take the "
        f"centre of {side} x {side}.\nimages = torch.rand(2, 3, {side}, {side})"
    ) in found
    assert "As in an evaluation" not in lines("a.pth", source=weights(pixels=None))  # of timm's own recipe


def test_a_comment_says_where_the_names_of_the_classes_are():
    said = "# outputs[:, k] is the score of class k, counted from 0, of the dataset's classes: see its dataset.json."
    assert said in lines("a.pth", num_classes=5)
    assert said not in lines("a.pth")
    named = lines("a.pth", num_classes=5, has_classes=True)
    assert "# outputs[:, k] is the score of classes[k]; Hugging Face's id2label is dict(enumerate(classes))." in named
    assert said not in named


def test_a_comment_says_how_hugging_faces_library_is_installed():
    assert lines("a.pth", "transformers.ViTMAEModel()", names="vitmae").startswith("# pip install transformers\n")
    assert "pip install" not in lines("a.pth")
