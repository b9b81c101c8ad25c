"""Vision transformers beside timm's with the same weights."""

import pytest
import torch

from dataprep.errors import UsageError
from tests.support.on_use import on_use
from train.models.sizes import POOLS
from train.models.vit import BlockConfig, VisionTransformer, ViTConfig

timm = on_use("timm")
NAMED = {
    "vit_base_patch16_224": (
        ViTConfig(image_size=224, patch_size=16, depth=12, block=BlockConfig(dim=768, num_heads=12)),
        86.6,
    ),
    "vit_large_patch16_224": (
        ViTConfig(image_size=224, patch_size=16, depth=24, block=BlockConfig(dim=1024, num_heads=16)),
        304.3,
    ),
    "vit_huge_patch14_224": (
        ViTConfig(image_size=224, patch_size=14, depth=32, block=BlockConfig(dim=1280, num_heads=16)),
        632.0,
    ),
}


def small(pool: str, **dropout: float) -> tuple[VisionTransformer, torch.nn.Module]:
    torch.manual_seed(0)
    block = BlockConfig(dim=48, num_heads=3, **dropout)
    config = ViTConfig(
        image_size=32, patch_size=8, depth=3, block=block, num_classes=7, pool=pool, class_token=pool == "token"
    )
    ours = VisionTransformer(config)
    theirs = timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, depth=3, embed_dim=48, num_heads=3, num_classes=7,
        global_pool="token" if pool == "token" else "avg", class_token=pool == "token", fc_norm=pool == "average",
        proj_drop_rate=dropout.get("dropout", 0.0), attn_drop_rate=dropout.get("att_dropout", 0.0),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.2)  # no zeros that would hide a bias
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("pool", POOLS)
def test_logits_and_gradients_are_timms(pool):
    ours, theirs = small(pool)
    images = torch.randn(5, 3, 32, 32)
    logits, expected = ours(images), theirs(images)
    assert (logits - expected).abs().max() < 2e-5
    for output in (logits, expected):
        torch.nn.functional.cross_entropy(output, torch.arange(5)).backward()
    gradients = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        scale = gradients[name].grad.abs().max()
        assert (parameter.grad - gradients[name].grad).abs().max() <= 1e-4 * scale, name


@pytest.mark.parametrize("dropout", [{}, {"dropout": 0.3}, {"att_dropout": 0.3}, {"dropout": 0.2, "att_dropout": 0.1}])
def test_dropout_is_applied_where_timm_applies_it(dropout):
    """Both draw the same masks from the same generator, in training alone."""
    ours, theirs = small("average", **dropout)
    images, outputs = torch.randn(5, 3, 32, 32), []
    for model in (ours, theirs):
        torch.manual_seed(1)
        outputs.append(model(images))
    assert torch.allclose(*outputs, atol=1e-5)
    assert torch.equal(ours.eval()(images), ours(images))
    assert torch.allclose(ours.train()(images), outputs[0], atol=1e-5) == (not dropout)


@pytest.mark.parametrize("name", NAMED)
def test_numbers_of_parameters_are_timms_and_the_published_ones(name):
    config, millions = NAMED[name]
    with torch.device("meta"):
        count = sum(each.numel() for each in VisionTransformer(config).parameters())
        theirs = timm.create_model(name, num_classes=1000)
    assert count == sum(each.numel() for each in theirs.parameters())
    assert round(count / 1e6, 1) == millions


def test_a_bias_of_keys_does_not_change_the_logits():
    torch.manual_seed(0)
    with_bias = VisionTransformer(
        ViTConfig(image_size=16, patch_size=8, depth=2, block=BlockConfig(dim=16, num_heads=2))
    )
    block = BlockConfig(dim=16, num_heads=2, k_bias=False)
    without = VisionTransformer(ViTConfig(image_size=16, patch_size=8, depth=2, block=block))
    weights = with_bias.state_dict()
    for name in [name for name in weights if name.endswith("qkv.bias")]:
        torch.nn.init.normal_(weights[name])
        query, _, value = weights[name].chunk(3)
        prefix = name.removesuffix("qkv.bias")
        weights |= {f"{prefix}q_bias": query, f"{prefix}v_bias": value}
    with_bias.load_state_dict({name: weights[name] for name in with_bias.state_dict()})
    without.load_state_dict({name: weights[name] for name in without.state_dict()})
    images = torch.randn(2, 3, 16, 16)
    assert torch.allclose(with_bias(images), without(images), atol=1e-5)


def test_a_pool_that_needs_a_class_token_is_refused_without_one():
    block = BlockConfig(dim=16, num_heads=2)
    with pytest.raises(UsageError, match="pool must be token"):
        ViTConfig(image_size=32, patch_size=8, depth=1, block=block, class_token=False)


def test_stochastic_depth_drops_branches_of_some_samples_and_scales_the_others():
    """Huang et al., ECCV 2016: nothing, or 1 / (1 - p) of it; the deeper the block, the greater p, from 0."""
    model = VisionTransformer(
        ViTConfig(
            image_size=16, patch_size=8, depth=4, block=BlockConfig(dim=16, num_heads=2), num_classes=2, drop_path=0.6
        )
    )
    assert [block.drop_path for block in model.blocks] == pytest.approx([0.0, 0.2, 0.4, 0.6])
    torch.manual_seed(0)
    for block in model.blocks:
        block.mlp.fc2.weight.data.zero_()  # leaves attention's branch alone
        x = torch.randn(1, 3, 16)
        branch = block.attn(block.norm1(x))
        changes = block.train()(x.expand(4000, -1, -1)) - x
        shares = (changes * branch).sum((1, 2)) / branch.square().sum()
        kept = shares > 0.5
        assert torch.allclose(shares[kept], torch.tensor(1 / (1 - block.drop_path)), rtol=1e-4)
        assert torch.allclose(shares[~kept], torch.tensor(0.0), atol=1e-4)
        assert kept.float().mean().item() == pytest.approx(1 - block.drop_path, abs=0.04)


def test_mean_pooling_leaves_the_class_token_out():
    config = ViTConfig(
        image_size=16, patch_size=8, depth=0, block=BlockConfig(dim=16, num_heads=2), num_classes=2, pool="average"
    )
    model = VisionTransformer(config).eval()
    images = torch.randn(2, 3, 16, 16)
    before = model(images)
    model.cls_token.data.add_(torch.arange(16.0))
    assert torch.equal(model(images), before)
