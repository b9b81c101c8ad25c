"""Models by their names: what a name says, and what it is not."""

import pytest
import torch

from dataprep.errors import UsageError
from train.models.registry import TinyCNN, classifier_names, create_model, model_names, torchvision_classifier


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mae_vit_base_patch17", {}, "did you mean mae_vit_base_patch1[46]"),
        ("mae_vit_micro_patch8", {"norm_pix": True}, "did you mean norm_pix_loss"),
        ("mae_vit_micro_patch8", {"decoder_downsampling": 3}, "decoder_downsampling 3 does not divide the 8 patches"),
        ("mae_vit_micro_patch8", {"pred_downsampling": 2}, "pred_downsampling 2 does not divide decoder_downs"),
        ("mae_vit_micro_patch8", {"patch_size": 7}, "images of 64 pixels cannot be cut into patches of 7"),
        ("mae_vit_micro_patch8", {"patch_size": 0}, "`patch_size` must be 1 or more, got 0"),
        ("resnet18", {"patch_size": 7}, "there are num_classes"),
    ],
)
def test_unknown_names_and_options_are_refused(name, options, message):
    with pytest.raises(UsageError, match=message):
        create_model(name, image_size=64, **options)


def test_every_kind_of_model_has_its_names():
    assert {"mae_vit_base_patch16", "tiny_cnn", "resnet50"} <= set(model_names())
    assert create_model("tiny_cnn", image_size=32, num_classes=3).layers[-1].out_features == 3


def test_torchvisions_models_with_one_loss_are_listed():
    names = classifier_names()
    assert {"resnet50", "vit_b_16", "shufflenet_v2_x0_5"} <= set(names)
    assert not {"googlenet", "inception_v3"} & set(names)


def test_a_vision_transformer_is_made_for_the_size_of_the_images():
    with torch.device("meta"):
        model = torchvision_classifier("vit_b_32", 64, 7)
    assert (model.image_size, model.heads.head.out_features) == (64, 7)


def test_the_tiny_network_takes_every_fourth_pixel():
    images = torch.rand(2, 3, 64, 64)[:, :, :: TinyCNN.pixel_stride, :: TinyCNN.pixel_stride]
    assert TinyCNN(5)(images).shape == (2, 5)
