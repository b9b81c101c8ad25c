"""Layers and their shares of the learning rate; that updates follow them, `loops/test_torch.py` shows."""

from train.checkpoints.encoder_weights import ClassifierConfig, open_classifier
from train.optim.optimizer import open_layered_adamw


def model():
    return open_classifier("vit_micro_patch8", None, ClassifierConfig(image_size=16, num_classes=3, pool="average"))


def test_every_parameter_is_in_one_group_and_vectors_do_not_decay():
    network = model()
    groups = open_layered_adamw(network, lr=1.0, weight_decay=0.3, layer_decay=0.5).param_groups
    assert sorted({group["lr_scale"] for group in groups}) == [0.125, 0.25, 0.5, 1.0]
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert len(grouped) == len(set(grouped)) == len(list(network.parameters()))
    for group in groups:
        for parameter in group["params"]:
            is_vector = parameter.ndim <= 1 or parameter is network.cls_token or parameter is network.pos_embed
            assert group["weight_decay"] == (0.0 if is_vector else 0.3)
