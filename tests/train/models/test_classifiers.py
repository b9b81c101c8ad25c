"""Classifiers: torchvision's by their names, and a tiny one."""

import torch

from train.models.registry import TinyCNN, classifier_names, torchvision_classifier


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
