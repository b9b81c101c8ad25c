"""Fine-tuning and probing: exact, resumable, the same however the batch is cut; on XLA in processes of their own."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.storage import open_storage
from dataprep.watching import LOG_FILE
from loaders.config import LoaderConfig
from tests.support.finetuning import PROBE, SMALL, finetune
from tests.support.forked_transforms import forked_transforms  # noqa: F401
from tests.support.on_use import on_use
from tests.support.training import log_lines, losses
from train.batches.data import IMAGENET_MEAN, IMAGENET_STD
from train.export import export
from train.finetune_mae import BestAccuracy, Erasing, FinetuneAugment, command, open_training, recipe_flags
from train.loops.runtime import open_runtime
from train.models.registry import create_model
from train.telemetry.logs import Logs

pytestmark = pytest.mark.usefixtures("forked_transforms")
STEPS = 22


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory):
    """Losses of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    assert finetune(dataset, output_dir=str(folder), **SMALL) == 0
    found = losses(folder)
    assert list(found) == list(range(1, STEPS + 1))
    return found


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    """Weights of a masked autoencoder, as its authors publish theirs."""
    path = tmp_path_factory.mktemp("pretrained") / "mae.pth"
    torch.manual_seed(3)
    torch.save({"model": create_model("mae_vit_micro_patch8", image_size=64).state_dict()}, path)
    return str(path)


def newest(folder: object) -> str:
    return str(sorted(Path(str(folder)).glob("checkpoint-*.pth"))[-1])


def evaluations(folder: object) -> list[dict]:
    return [line for line in map(json.loads, log_lines(folder)) if "val_accuracy" in line]


def test_two_runs_have_the_same_losses(dataset, expected, tmp_path):
    assert finetune(dataset, output_dir=str(tmp_path / "same"), **SMALL, max_steps=9) == 0
    assert losses(tmp_path / "same") == {step: expected[step] for step in range(1, 10)}


def test_the_export_of_a_run_names_the_classes_of_its_data(dataset, tmp_path):
    finetune(dataset, output_dir=str(tmp_path), **SMALL, max_steps=1)
    classes = list(read_manifest(open_storage(dataset)).classes)
    done = export(newest(tmp_path), str(tmp_path / "tuned.safetensors"))
    assert (done.num_classes, done.classes) == (len(classes), classes)


def test_all_layers_of_a_pretrained_model_learn_and_those_nearest_to_the_pixels_least(dataset, pretrained, tmp_path):
    flags = {**SMALL, "finetune": pretrained, "layer_decay": 0.5, "blr": 1e-2, "weight_decay": 0.0}
    training = open_training(recipe_flags(data_path=dataset, device="cpu", output_dir=str(tmp_path), **flags))
    before = {name: each.clone() for name, each in training.backend.model.state_dict().items()}
    assert training.run() == 0
    after = training.backend.model.state_dict()
    changes = [
        float((after[name] - before[name]).abs().max())
        for name in ("patch_embed.proj.weight", "blocks.0.mlp.fc1.weight", "blocks.1.mlp.fc1.weight", "head.weight")
    ]
    assert 0 < changes[0] < changes[1] < changes[2] < changes[3]
    scales = {group["lr_scale"] for group in training.backend.optimizer.param_groups}
    assert scales == {1.0, 0.5, 0.25, 0.125}


def test_a_probe_trains_its_head_alone_and_is_exact(dataset, pretrained, tmp_path):
    flags = {**PROBE, "finetune": pretrained}
    training = open_training(recipe_flags(data_path=dataset, device="cpu", output_dir=str(tmp_path / "a"), **flags))
    before = {name: each.clone() for name, each in training.backend.model.state_dict().items()}
    assert training.run() == 0
    after = training.backend.model.state_dict()
    changed = {name for name, each in after.items() if not torch.equal(each, before[name])}
    assert changed == {f"head.{name}" for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked")} | {
        "head.1.weight", "head.1.bias",
    }  # fmt: skip
    for stop in (4, 0):
        finetune(dataset, output_dir=str(tmp_path / "b"), **flags, max_steps=stop, resume="automatic")
    assert losses(tmp_path / "b") == losses(tmp_path / "a")
    assert evaluations(tmp_path / "b") == evaluations(tmp_path / "a")


@pytest.mark.parametrize("probe", [False, True])
def test_a_run_says_at_its_start_which_of_its_first_weights_are_from_where(
    dataset, pretrained, tmp_path, capsys, probe
):
    kind = {"linear_probe": True} if probe else {}
    shared = {"data_path": dataset, "device": "cpu", "output_dir": str(tmp_path), "effective_batch_size": 8}
    training = open_training(recipe_flags(**shared, **kind, finetune=pretrained))
    own, theirs = training.backend.model.state_dict(), torch.load(pretrained)["model"]
    taken = [name for name, each in own.items() if name in theirs and torch.equal(each, theirs[name])]
    assert {name.split(".")[0] for name in own.keys() - taken} == ({"head"} if probe else {"head", "fc_norm"})
    new = "head" if probe else "fc_norm, head"
    classes = training.backend.model.config.num_classes
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"vit_micro_patch8, images of 64 pixels, {classes:,} classes; {len(taken)} of {len(own)} tensors are from "
        f"{pretrained}, the rest ({new}) is new"
    )


@pytest.mark.parametrize("probe", [False, True])
def test_images_have_the_side_of_the_weights_unless_another_is_asked_for(dataset, pretrained, tmp_path, probe):
    kind = {"linear_probe": True} if probe else {}
    for side, flags in ((64, {"finetune": pretrained}), (32, {"finetune": pretrained, "input_size": 32})):
        values = {"data_path": dataset, "device": "cpu", "effective_batch_size": 8, **kind, **flags}
        training = open_training(recipe_flags(**values))
        validation = training.backend.task.validation
        sides = {training.loader.config.image_size, validation.config.image_size}
        assert (sides, training.backend.model.config.image_size) == ({side}, side)
        assert training.description["input_size"] == side


def test_an_evaluation_has_the_side_of_its_checkpoint(dataset, tmp_path, capsys):
    finetune(dataset, output_dir=str(tmp_path), **SMALL, max_steps=1)
    flags = {"data_path": dataset, "device": "cpu", "effective_batch_size": 8, "eval": True}
    training = open_training(recipe_flags(**flags, resume=newest(tmp_path)))
    assert training.backend.task.validation.config.image_size == SMALL["input_size"]


def test_evaluation_alone_prints_the_numbers_of_the_log(dataset, pretrained, tmp_path, capsys):
    flags = {**PROBE, "finetune": pretrained, "output_dir": str(tmp_path)}
    finetune(dataset, **flags)
    capsys.readouterr()
    shared = ["--data_path", dataset, "--device", "cpu", "--input_size", "32", "--effective_batch_size", "4"]
    for resume in ("automatic", newest(tmp_path)):
        arguments = [*shared, "--output_dir", str(tmp_path), "--eval", "--dist_eval", "--linear_probe"]
        assert command.main([*arguments, "--resume", resume], standalone_mode=False) == 0
        found = json.loads(capsys.readouterr().out)
        last = evaluations(tmp_path)[-1]
        assert (found["accuracy"], found["images"]) == (last["val_accuracy"], last["val_images"])
        assert found["loss"] == pytest.approx(last["val_loss"], rel=1e-5)
    with pytest.raises(UsageError, match=r"from another model: fc_norm\.bias is only in this model"):
        command.main([*shared, "--eval", "--resume", newest(tmp_path)], standalone_mode=False)
    with pytest.raises(UsageError, match="no undamaged checkpoint to evaluate"):
        command.main(
            [*shared, "--output_dir", str(tmp_path / "none"), "--eval", "--resume", "automatic"], standalone_mode=False
        )


def test_a_probe_has_the_papers_defaults_unless_flags_override_them():
    flags = recipe_flags(data_path="x", finetune="y", linear_probe=True, epochs=3)
    assert (flags.epochs, flags.blr, flags.weight_decay, flags.aa) == (3, 0.1, 0.0, "")
    assert (flags.pool, flags.min_lr) == ("token", 0.0)
    flags = recipe_flags(data_path="x")
    assert (flags.epochs, flags.blr, flags.weight_decay) == (50, 1e-3, 0.05)
    assert (flags.pool, flags.min_lr, flags.layer_decay) == ("average", 1e-6, 0.75)


@pytest.mark.parametrize(
    ("flags", "images", "expected"),
    [
        ({}, 1_281_167, (64, 5.0, 1e-3 * 64 / 256)),
        ({}, 95, (16, 5.0, 1e-3 * 16 / 256)),
        ({"linear_probe": True}, 1_281_167, (512, 10.0, 0.1 * 512 / 256)),
        ({"linear_probe": True, "epochs": 9}, 95, (16, 1.0, 0.1 * 16 / 256)),
        ({"linear_probe": True, "effective_batch_size": 16384}, 95, (None, 10.0, 0.1 * 16384 / 256)),
        ({"batch_size": 32, "lr": 1.0, "warmup_epochs": 3.0}, 95, (32, 3.0, 1.0)),
    ],
)
def test_batch_rate_and_warm_up_are_the_papers_or_fit_small_data(flags, images, expected):
    fitted = recipe_flags(data_path="x", finetune="y", **flags).fitted_to(images, open_runtime("cpu"))
    assert (fitted.batch_size, fitted.warmup_epochs, fitted.lr) == pytest.approx(expected)


def test_the_command_line_of_maes_fine_tuning_is_accepted(monkeypatch):
    seen = []
    monkeypatch.setattr("train.finetune_mae.open_training", lambda flags: seen.append(flags) or 0)
    monkeypatch.setattr("train.finetune_mae.run", lambda *_, **__: 0)
    line = (
        "--accum_iter 4 --batch_size 32 --model vit_base_patch16 --finetune mae.pth --epochs 100 --blr 5e-4 "
        "--layer_decay 0.65 --weight_decay 0.05 --drop_path 0.1 --mixup 0.8 --cutmix 1.0 --cutmix_minmax 0.2 0.8 "
        "--reprob 0.25 --dist_eval --data_path x --nb_classes 1000 --clip_grad 1"
    )
    command.main(line.split(), standalone_mode=False)
    assert seen[0].cutmix_minmax == (0.2, 0.8)
    assert (seen[0].blr, seen[0].batch_size, seen[0].clip_grad) == (5e-4, 32, 1.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"linear_probe": True}, "`linear_probe` without `finetune`"),
        ({"linear_probe": True, "finetune": "y", "mixup": 0.8}, "`mixup` and `linear_probe`"),
        ({"linear_probe": True, "finetune": "y", "aa": "rand-m9"}, "`aa` and `linear_probe`"),
        ({"linear_probe": True, "finetune": "y", "framework": "jax", "ema_decay": 0.5}, "`ema_decay` and `linear"),
        ({"eval": True}, "`eval` without `resume`"),
        ({"smoothing": 1.0}, "`smoothing` must be"),
        ({"mixup": -1.0}, "`mixup` must be 0 or more"),
        ({"mixup_mode": "half"}, "`mixup_mode` must be one of batch, pair, elem"),
        ({"cutmix_minmax": (0.8, 0.2)}, "`cutmix_minmax` must be a range"),
        ({"color_jitter": 0.4}, "`color_jitter` 0.4 with `aa` rand"),
        ({"aa": "", "color_jitter": 2.0}, "`color_jitter` must be 0 to 1"),
        ({"aa": "rand-z9"}, "`aa` rand-z9: not a timm augmentation"),
        ({"aa": "best"}, "`aa` best: not a timm augmentation"),
        ({"reprob": 2.0}, "`reprob` must be 0 to 1, got 2.0"),
        ({"remode": "none"}, "`remode` must be one of"),
        ({"layer_decay": 0.0}, "`layer_decay` must be above 0"),
        ({"model": "vit_giant_patch16"}, "no encoder 'vit_giant_patch16'; expected vit_SIZE_patchN of micro"),
        ({"nb_classes": 1}, "`num_classes` is 1, but the data have"),
    ],
)
def test_contradicting_flags_are_refused(dataset, flags, message):
    values = {"data_path": dataset, "device": "cpu", "model": "vit_micro_patch8", "input_size": 32, "output_dir": ""}
    with pytest.raises(UsageError, match=message):
        open_training(recipe_flags(**{**values, **flags}))


ks_2samp = on_use("scipy.stats:ks_2samp")
RandomErasing = on_use("timm.data.random_erasing:RandomErasing")
SIDE = 96
MEAN = [round(255 * each) for each in IMAGENET_MEAN]


def erase(seed: int, *, side: int = SIDE, color: int = 255, **settings) -> np.ndarray:
    """An image of one colour, erased."""
    augment = FinetuneAugment(
        policy="", color_jitter=0.0, erasing=Erasing(**{"prob": 1.0, **settings}), image_size=side
    )
    image = np.full((side, side, 3), color, np.uint8)
    erased = augment(image, np.random.default_rng(seed))
    assert (image == color).all(), "the loader's image is its own"
    return erased


def box_of(erased: np.ndarray, color: int = 255) -> tuple[int, int]:
    """Height and width of what is not of the image's colour, which must be one full box."""
    changed = (erased != color).any(axis=2)
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert changed.sum() == height * width
    return int(height), int(width)


@given(st.integers(0, 2**32), st.integers(24, 160))
def test_a_box_has_the_area_and_the_sides_that_the_paper_says(seed, side):
    height, width = box_of(erase(seed, side=side, mode="const"))
    # A side is rounded to the next pixel.
    assert 0.02 * side**2 <= (height + 0.5) * (width + 0.5)
    assert (height - 0.5) * (width - 0.5) <= side**2 / 3
    assert (height - 0.5) / (width + 0.5) <= 1 / 0.3
    assert (height + 0.5) / (width - 0.5) >= 0.3
    assert max(height, width) < side


def test_boxes_are_drawn_as_timm_draws_them():
    """Areas and sides of 1,500 boxes each; from the same distribution, p is below 0.001 once in a thousand seeds."""
    random.seed(0)
    theirs_of, ones = RandomErasing(probability=1.0, mode="const", device="cpu"), torch.ones(3, SIDE, SIDE)
    theirs = [box_of(theirs_of(ones.clone()).permute(1, 2, 0).numpy(), color=1) for _ in range(1500)]
    ours = [box_of(erase(seed, mode="const")) for seed in range(1500)]
    for number in (lambda height, width: height * width, lambda height, width: math.log(height / width)):
        assert ks_2samp([number(*each) for each in ours], [number(*each) for each in theirs]).pvalue > 1e-3


def test_boxes_lie_anywhere_in_the_image():
    """Every pixel is erased in some of 2,000 images, and as often as its mirror images are."""
    share_HW = np.mean([(erase(seed, side=24, mode="const") != 255).any(axis=2) for seed in range(2000)], axis=0)
    assert share_HW.min() > 0
    for turned in (share_HW[::-1], share_HW[:, ::-1], share_HW.T):
        assert np.abs(share_HW - turned).max() < 0.06  # four standard errors of the difference, at a share of a fifth


def test_each_mode_fills_boxes_with_its_colours():
    for seed in range(5):
        const, rand, pixel = (erase(seed, mode=mode) for mode in ("const", "rand", "pixel"))
        assert {tuple(each) for each in const.reshape(-1, 3)} == {(255, 255, 255), tuple(MEAN)}
        assert len({tuple(each) for each in rand.reshape(-1, 3)}) == 2
        inside = pixel[(pixel != 255).any(axis=2)]
        assert len({tuple(each) for each in inside}) > 0.9 * len(inside)


def test_noise_has_the_mean_and_the_deviation_of_the_data():
    """Pixels are drawn from a normal distribution and cut to 0..255."""
    inside = np.concatenate([(each := erase(seed, mode="pixel"))[(each != 255).any(axis=2)] for seed in range(200)])
    noise = np.random.default_rng(0).normal(IMAGENET_MEAN, IMAGENET_STD, (200_000, 3))
    expected = np.clip(255 * noise, 0, 255)
    assert np.allclose(inside.mean(axis=0), expected.mean(axis=0), atol=1)
    assert np.allclose(inside.std(axis=0), expected.std(axis=0), atol=1)


def test_boxes_are_erased_with_the_given_probability_and_count():
    erased = sum((erase(seed, side=24, prob=0.25) != 255).any() for seed in range(1000))
    assert abs(erased - 250) < 4 * math.sqrt(1000 * 0.25 * 0.75)
    several = [erase(seed, mode="rand", count=4) for seed in range(80)]
    assert {len(np.unique(each.reshape(-1, 3), axis=0)) - 1 for each in several} == {1, 2, 3, 4}
    areas = [(each != 255).any(axis=2).mean() for each in several]
    assert max(areas) < 1 / 3 + 0.02


def test_colours_are_jittered_as_pillow_does_within_the_given_range():
    """Every result is one of the six orders of three enhancements."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    augment = FinetuneAugment(policy="", color_jitter=0.4, erasing=Erasing(), image_size=16)
    rng = np.random.default_rng(3)
    factors = rng.uniform(0.6, 1.4, 3)
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    found = augment(pixels, np.random.default_rng(3))
    expected = []
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        image = Image.fromarray(pixels)
        for index in order:
            image = kinds[index](image).enhance(factors[index])
        expected.append(np.asarray(image))
    assert sum(np.array_equal(found, each) for each in expected) == 1
    assert np.array_equal(found, augment(pixels, np.random.default_rng(3)))


def test_a_state_of_version_0_1_0_names_this_augmentation():
    augment = FinetuneAugment(policy="", color_jitter=0.0, erasing=Erasing(), image_size=SIDE)
    document = LoaderConfig(batch_size=8, transform=augment).sequence_document()
    assert document["transform"] == "train.finetune_augment.FinetuneAugment"


def test_the_best_of_this_process_and_of_the_log_is_added(tmp_path):
    best = BestAccuracy(Logs(str(tmp_path)))
    assert best.judge({"accuracy": 0.4, "loss": 1.0}) == {"accuracy": 0.4, "loss": 1.0, "best_accuracy": 0.4}
    assert best.judge({"accuracy": 0.3})["best_accuracy"] == 0.4
    lines = [{"step": 1, "loss": 2.0}, {"step": 1, "val_accuracy": 0.6}]
    (tmp_path / LOG_FILE).write_text("no JSON\n" + "".join(f"{json.dumps(line)}\n" for line in lines))
    assert BestAccuracy(Logs(str(tmp_path))).judge({"accuracy": 0.5})["best_accuracy"] == 0.6
    assert BestAccuracy(Logs(None)).judge({"accuracy": 0.5})["best_accuracy"] == 0.5
