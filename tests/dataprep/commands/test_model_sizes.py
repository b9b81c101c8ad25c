"""The image size that a model's name says, compared with timm's own list."""

from __future__ import annotations

from contextlib import suppress

import pytest
import timm

from dataprep.commands.model_sizes import image_size_of
from dataprep.errors import UsageError
from train.models.registry import model_names

OUR_MODELS = [name for name in model_names() if name.startswith(("mae_vit_", "vit_", "resnet"))]


@pytest.mark.parametrize(
    ("model", "pixels"),
    [
        ("vit_large_patch14_clip_336", 336),
        ("vit_large_patch14_clip_336.openai", 336),
        ("vit_base_patch16_384.augreg_in21k_ft_in1k", 384),
        ("convnext_base.fb_in22k_ft_in1k_384", 384),
        ("vit_large_patch16_224", 224),
        ("vit_base_patch16_dinov2_512", 512),
        ("resnet152", 224),
        ("ViT-B/16", 224),
        ("ViT-L-14", 224),
        ("ViT-L/14@336px", 336),
        ("ViT-B-16-SigLIP-384", 384),
        ("google/vit-base-patch16-384", 384),
        ("ResNet-50", 224),
        ("swin_tiny_patch4_window7_224", 224),
        ("xcit_small_12_p16_384", 384),
        ("botnet26t_256", 256),
        ("coatnet_0_rw_224", 224),
        ("mobilevitv2_150.cvnets_in22k_ft_in1k_384", 384),
        *((name, 448 if "_dec" in name else 224) for name in OUR_MODELS),
    ],
)
def test_the_image_size_is_that_of_the_models_name(model, pixels):
    assert image_size_of(model) == pixels


@pytest.mark.parametrize(
    "model",
    [
        *("vit_base_patch14_dinov2", "vit_large_patch14_clip", "resnet_152", "resnetv2_50x1_bit"),
        *("DenseNet-121", "ResNet-v2-152", "ViT-H/14-CLIP", "mobilenetv3_large_100", "regnetx_032.pycls_in1k"),
    ],
)
def test_a_name_that_may_mean_another_size_is_not_guessed(model):
    with pytest.raises(UsageError, match=f"image size of {model} is not known; give --image-size"):
        image_size_of(model)


def test_no_model_of_timms_is_taken_to_have_another_size_than_timm_says():
    names = [*timm.list_models(), *timm.list_models(pretrained=True)]
    found = {}
    for name in names:
        with suppress(UsageError):
            found[name] = image_size_of(name)
    assert len(found) > 1000
    configs = {name: timm.models.get_pretrained_cfg(name) for name in found}
    assert found == {name: config.input_size[-1] if config else 224 for name, config in configs.items()}
