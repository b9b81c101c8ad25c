"""Fake images: as many as ImageNet has, resumable as real ones, and nothing is read."""

from train.batches.fake_data import TRAINING_IMAGES, VALIDATION_IMAGES
from train.train_vit import TrainViT, open_training

SMALL = {
    "image_size": 16,
    "patch_size": 8,
    "embed_dim": 32,
    "num_heads": 2,
    "num_blocks": 2,
    "epochs": 2,
    "warmup_steps": 3,
    "num_workers": 2,
    "max_steps": 3,
}


def test_fake_images_are_as_many_as_imagenet_has_and_read_nothing(tmp_path, monkeypatch):
    flags = {**SMALL, "fake_data": True, "data_path": str(tmp_path / "none"), "device": "cpu", "batch_size": 1024}
    training = open_training(TrainViT(**flags, output_dir=""))
    loader, validation = training.loader, training.backend.task.validation
    assert (loader.order.num_samples, validation.order.num_samples) == (TRAINING_IMAGES, VALIDATION_IMAGES)
    assert loader.order.first_batch(1) == 1_281_167 // 1024
    *_, before, last = iter(validation)
    assert (int(last.mask.sum()), int((last.labels == -1).sum())) == (50_000 % 1024, 1024 - 50_000 % 1024)
    validation.load_state_dict(before.state)
    assert [batch.keys for batch in validation] == [last.keys]
    batches = iter(loader)
    state = [next(batches) for _ in range(3)][-1].state
    again = open_training(TrainViT(**flags, output_dir="")).loader
    again.load_state_dict(state)
    assert next(iter(again)).keys[0] == next(batches).keys[0] == "fake-3072"
    assert not (tmp_path / "none").exists()
