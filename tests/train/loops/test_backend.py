"""Backends: each answers all that the loop asks, and no import of one brings the other's framework."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.mixtures.order import Change, Member, MixedOrder
from loaders.order import Order
from tests.support.markdown import ROOT
from tests.support.memory_growth import MemoryGrowth
from train.loops.backend import LoopConfig, ended_epochs, plan_of, resumed_position, sharded_dimension, trained_images
from train.models.vit import BlockConfig, VisionTransformer, ViTConfig
from train.train_vit import TrainViT, command, plan


@pytest.mark.parametrize(
    ("imported", "absent"), [("train.loops.jax, train.train_resnet_jax", "torch"), ("train.loops.torch", "jax")]
)
def test_no_backend_imports_the_framework_of_another(imported, absent):
    program = f"import sys, {imported}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=800).returncode == 0


def order_of(images: int, batch: int, passes: int = 1) -> Order:
    return Order(shard_samples=(images,), seed=0, global_batch=batch, samples_per_block=1, passes=passes)


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 3), st.integers(0, 40))
def test_an_epoch_ends_with_the_last_batch_that_lies_in_it(images, batch, passes, step):
    samples = images * passes
    expected = [epoch for epoch in range(1, 2000) if epoch * samples // batch == step and step > 0]
    assert list(ended_epochs(order_of(images, batch, passes), step)) == expected


@given(
    st.integers(1, 40), st.integers(1, 12), st.integers(1, 5), st.integers(0, 7), st.integers(0, 3), st.integers(0, 3)
)
def test_logs_evaluations_and_checkpoints_are_due_after_the_right_steps(
    images, batch, epochs, steps_between, log_epochs, eval_epochs
):
    order = order_of(images, batch)
    config = LoopConfig(
        epochs=epochs,
        log_interval_steps=steps_between,
        log_interval_epochs=log_epochs,
        eval_interval=eval_epochs,
        ckpt_interval=2,
        first_saved_epoch=1,
        ckpt_interval_steps=steps_between,
    )
    for step in range(1, order.first_batch(epochs) + 1):
        ended = ended_epochs(order, step)
        by_step = bool(steps_between) and step in range(0, 10**4, steps_between)
        logged = bool(log_epochs) and any(epoch in range(0, 10**4, log_epochs) for epoch in ended)
        evaluated = bool(eval_epochs) and any(epoch in (*range(0, 10**4, eval_epochs), epochs) for epoch in ended)
        saved = any(epoch in (*range(2, 10**4, 2), epochs) for epoch in ended)
        assert config.is_log_due(step, ended) == (by_step or logged)
        assert config.is_evaluation_due(ended) == evaluated
        assert config.is_save_due(step, ended) == (by_step or saved)


@pytest.mark.parametrize(("max_steps", "last"), [(0, 15), (4, 4), (100, 15)])
def test_a_run_ends_after_its_epochs_or_a_number_of_steps(max_steps, last):
    assert LoopConfig(epochs=2, max_steps=max_steps).last_step(order_of(60, 8)) == last


def test_a_checkpoint_is_due_after_the_given_minutes():
    assert not LoopConfig(epochs=1).is_save_due_after(1e9)
    assert not LoopConfig(epochs=1, ckpt_interval_minutes=2).is_save_due_after(119)
    assert LoopConfig(epochs=1, ckpt_interval_minutes=2).is_save_due_after(120)


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 3), st.integers(1, 4), st.integers(0, 40))
def test_a_resumed_run_says_how_many_images_of_its_epoch_are_done_and_how_many_follow(
    images, batch, passes, epochs, step
):
    order, samples = order_of(images, batch, passes), images * passes
    trained = range(epochs * samples // batch * batch)  # positions
    said = resumed_position(order, epochs, step)
    if step * batch not in trained:
        assert said == ""
        return
    epoch = step * batch // samples
    of_epoch = range(epoch * samples, (epoch + 1) * samples)
    done = sum(each < step * batch for each in of_epoch)
    follow = sum(each >= step * batch and each in trained for each in of_epoch)
    expected = f": {done} of the {samples} images of epoch {epoch} are done, {follow} follow"
    left_out = samples - done - follow
    assert said == expected + (f", {left_out} at the end do not fill a batch" if left_out else "")


def test_the_end_of_a_run_says_how_many_images_were_left_out():
    order = order_of(301, 12)
    assert trained_images(order, 3, 75) == (
        "trained 900 of the 903 images of 3 epochs; the last 3 did not fill a batch of 12"
    )
    assert trained_images(order, 3, 21) == "trained 252 of the 903 images of 3 epochs"
    assert trained_images(order_of(24, 12), 1, 2) == "trained 24 of the 24 images of 1 epoch"


def test_the_end_of_a_run_counts_no_image_before_the_epoch_with_which_it_began():
    order = order_of(301, 12)
    assert trained_images(order, 3, 75, order.first_batch(1)) == (
        "trained 600 of the 903 images of 3 epochs; the run began after the first 300; "
        "the last 3 did not fill a batch of 12"
    )
    assert trained_images(order, 3, 27, 25) == (
        "trained 24 of the 903 images of 3 epochs; the run began after the first 300"
    )


def test_a_mixture_that_ends_has_no_image_after_its_end():
    own = order_of(50, 12)
    changes = (Change(0, (1,), (0,), 40),)
    settings = {"members": (Member(own, "stop", 50),), "changes": changes}
    shared = {"shard_samples": (50,), "seed": 0, "global_batch": 12, "samples_per_block": 1}
    order = MixedOrder(**shared, **settings, whole_batches=True)
    assert LoopConfig(epochs=3).last_step(order) == 4
    assert list(ended_epochs(order, 4)) == [2]
    assert trained_images(order, 3, 4) == (
        "trained 48 of the 50 images until the end of the mixture; the last 2 did not fill a batch of 12"
    )
    assert (
        trained_images(order, 1, 3) == "trained 36 of the 40 images of 1 epoch; the last 4 did not fill a batch of 12"
    )
    assert resumed_position(order, 3, 3) == (": 36 of the 40 images of epoch 0 are done, 4 follow")


@given(st.lists(st.integers(1, 4096), max_size=4), st.integers(1, 512))
def test_the_longest_dimension_that_all_devices_share_equally_is_sharded(shape, num_devices):
    cut = sharded_dimension(shape, num_devices)
    equal = [length for length in shape if length % num_devices == 0]
    assert (cut is None) == (not equal)
    if cut is not None:
        assert shape[cut] == max(equal)


def test_the_plan_of_ten_billion_parameters_has_the_expected_bytes_per_device(capsys):
    growth = MemoryGrowth()
    found = plan(TrainViT(), 128)
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
