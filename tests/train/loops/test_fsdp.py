"""How weights are cut among devices, and what the plan says of them."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory_growth import MemoryGrowth
from train.loops.backend import plan_of, sharded_dimension
from train.models.vit import BlockConfig, VisionTransformer, ViTConfig
from train.train_vit import TrainViT, command, plan


@given(st.lists(st.integers(1, 4096), max_size=4), st.integers(1, 512))
def test_the_longest_dimension_that_all_devices_share_equally_is_sharded(shape, num_devices):
    cut = sharded_dimension(shape, num_devices)
    equal = [length for length in shape if length % num_devices == 0]
    assert (cut is None) == (not equal)
    if cut is not None:
        assert shape[cut] == max(equal)


def test_the_plan_of_ten_billion_parameters_has_the_expected_bytes_per_device(capsys):
    growth = MemoryGrowth()
    found = plan(TrainViT())
    assert growth.bytes() < 2**30, "no weight is made"
    in_blocks = sum(share.bytes // 4 for share in found.shares if share.name.startswith("blocks."))
    assert (round(in_blocks / 1e9, 2), found.parameters) == (10.07, 10_077_917_160)
    assert found.bytes == 4 * found.parameters
    assert found.bytes / 128 <= found.bytes_per_device < 1.0001 * found.bytes / 128
    assert command.main(["--plan", "--plan_devices", "256", "--json"], standalone_mode=False) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["devices"], document["parameters"]) == (256, found.parameters)
    assert document["training_bytes_per_device"] == 4 * sum(each["bytes_per_device"] for each in document["weights"])
    assert command.main(["--plan"], standalone_mode=False) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "blocks.31.mlp.fc1.weight 20480/128 x 5120 419,430,400 3,276,800" in text
    assert "10,077,917,160 parameters, 40,311,668,640 bytes; on each of 128 devices 314,938,880" in text


def test_a_plan_depends_on_shapes_and_the_number_of_devices_alone():
    config = ViTConfig(
        image_size=16, patch_size=8, depth=1, block=BlockConfig(dim=16, num_heads=2), num_classes=10,
        pool="average", class_token=False,
    )  # fmt: skip
    model = VisionTransformer(config)
    found = plan_of(model, 8)
    held = {share.name: share.bytes_per_device for share in found.shares}
    assert held["head.weight"] == 10 * 16 * 4 / 8
    assert held["head.bias"] == 10 * 4, "ten logits are not for eight devices"
    assert plan_of(model, 1).bytes_per_device == found.bytes == sum(each.nbytes for each in model.parameters())
