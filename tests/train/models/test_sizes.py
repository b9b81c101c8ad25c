"""Sizes of transformers: what a name says, and what is refused."""

import re

import pytest

from dataprep.errors import UsageError
from tests.support.markdown import ROOT
from train.checkpoints.encoder_weights import named_encoder
from train.models.sizes import BlockConfig, layer_of, mae_config, mae_names

MODELS = (ROOT / "docs/training.md").read_text().split("## Models\n")[1].split("\n## ")[0]


def test_all_named_models_are_as_their_names_say():
    for name in mae_names():
        config = mae_config(name, image_size=1344)  # a multiple of every patch
        assert f"patch{config.patch_size}" in name
        if "dec384d12h8b" in name:
            assert (config.decoder.dim, config.decoder.num_heads, config.decoder_depth) == (384, 12, 8)
    assert {"mae_vit_base_patch64_dec384d12h8b", "mae_vit_large_patch32_dec512d16h8b"} <= set(mae_names())


def test_the_documented_names_are_those_that_each_command_takes():
    written = re.findall(r"`(mae_vit_[^`]+)`", "".join(re.findall(r"^\| `.*", MODELS, re.MULTILINE)))
    named = set()
    for name in written:
        start, _, more = name.partition("{")
        choices, _, end = more.partition("}")
        named |= {f"{start}{choice}{end}" for choice in choices.split(",")}
    original = {f"mae_vit_{each}_dec512d8b" for each in ("base_patch16", "large_patch16", "huge_patch14")}
    assert named | original == set(mae_names())
    for name in named:
        with pytest.raises(UsageError, match="no encoder"):
            named_encoder(name)
    listed = re.search(r"`vit_SIZE_patchN`, where SIZE is ([^.;]+) and N is any", MODELS)
    sizes = re.findall(r"`(\w+)`", listed[1])
    assert set(sizes) == {name.split("_")[2] for name in mae_names()}
    assert [named_encoder(f"vit_{size}_patch5").patch_size for size in sizes] == [5] * len(sizes)


def test_a_decoder_of_another_width_keeps_its_heads():
    config = mae_config("mae_vit_base_patch16", image_size=224, decoder_dim=256, decoder_depth=3, k_bias=False)
    assert (config.decoder.dim, config.decoder.num_heads, config.decoder_depth) == (256, 16, 3)
    assert not config.encoder.k_bias


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mae_config("resnet18", image_size=64), "no masked autoencoder 'resnet18'"),
        (lambda: BlockConfig(dim=63, num_heads=2), "a width of 63 cannot be cut into 2 heads"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("cls_token", 0),
        ("pos_embed", 0),
        ("patch_embed.proj.bias", 0),
        ("blocks.0.norm1.weight", 1),
        ("blocks.11.mlp.fc2.weight", 12),
        ("norm.weight", 13),
        ("fc_norm.bias", 13),
        ("head.weight", 13),
    ],
)
def test_a_layer_is_counted_from_the_pixels(name, layer):
    assert layer_of(name, 13) == layer
