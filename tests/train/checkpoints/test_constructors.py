"""Calls that make other libraries' networks: which weights have none, and sizes that are not the usual ones."""

from __future__ import annotations

import torch

from tests.support.on_use import on_use
from train.checkpoints.constructors import timm_call, vitmae_call
from train.checkpoints.encoder_weights import Weights
from train.models.registry import create_model

timm = on_use("timm")


def encoder() -> dict[str, torch.Tensor]:
    """Weights of the smallest encoder, by timm's names."""
    state = create_model("mae_vit_micro_patch8", image_size=32).state_dict()
    return {name: each for name, each in state.items() if not name.startswith(("decoder", "mask"))}


def calls(tensors: dict[str, torch.Tensor]) -> tuple[str | None, str | None]:
    weights = Weights("x.pth", tensors, None)
    return timm_call(weights, tensors), vitmae_call(weights, tensors)


def test_a_named_size_has_its_number_of_heads():
    assert calls(encoder()) == (
        "timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2, num_classes=0)",
        "transformers.ViTMAEModel(transformers.ViTMAEConfig(image_size=32, patch_size=8, hidden_size=64, "
        "num_hidden_layers=2, num_attention_heads=2, intermediate_size=256, layer_norm_eps=1e-06))",
    )


def test_another_width_of_the_mlp_and_a_size_without_a_name():
    theirs = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=48, depth=1, num_heads=4, num_classes=0, mlp_ratio=2.0
    )
    tensors = theirs.state_dict()
    found, hugging_face = calls(tensors)
    assert found is not None
    assert "num_heads=HEADS" in found
    eval(found.replace("HEADS", "4"), {"timm": timm}).load_state_dict(tensors, strict=True)  # noqa: S307  the call
    assert hugging_face is not None
    assert "num_attention_heads=HEADS, intermediate_size=96" in hugging_face


def test_weights_that_no_network_takes_have_no_call():
    beit = {name.replace("attn.qkv.bias", "attn.q_bias"): each for name, each in encoder().items()}
    assert calls(beit)[0] is None
    bare = encoder()
    bare["pos_embed"] = bare["pos_embed"][:, 1:]
    del bare["cls_token"]
    found, hugging_face = calls(bare)
    assert found is not None
    assert found.endswith("global_pool='avg', fc_norm=False, class_token=False)")
    assert hugging_face is None
