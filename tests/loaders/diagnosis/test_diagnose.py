"""Runs with one planted limit each: it is named, and the change that lifts it is what is measured afterwards.

Each is judged from given rates, and by `make soak SHOW=long-tests` once more from those that this machine reaches,
which agree with each other only while it is otherwise idle.
"""

import math
import re
import shlex
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.host.cpu import available_cores
from loaders.config import LoaderConfig
from loaders.dataset import open_dataset
from loaders.diagnosis import diagnose as diagnosing
from loaders.diagnosis.diagnose import (
    MOST_TRIED,
    TIE,
    _try_leading,
    advice_to_shrink,
    apply_best,
    conversion,
    diagnose,
    ranked,
)
from loaders.diagnosis.findings import STAGES, Limit, TransformCost
from loaders.diagnosis.observed_run import RunSetup, compute_threads, parse_simulated, using_threads
from loaders.diagnosis.report import limiting_stages
from tests.support.adoption import adopt_here
from tests.support.builds import dataprep
from tests.support.disturbed_device import SLOW_STEP_S, CrowdedDevice, DisturbedDevice
from tests.support.findings import fix_of
from tests.support.on_use import on_use
from tests.support.own_data import SPLITS, build_own, class_folders, picture
from tests.support.raw_tar import tar_of
from tests.support.slow_transforms import computing, one_at_a_time
from train.loops.workload import training_workload

torch = on_use("torch")

SECONDS = 0.6
SMALL = {"batch_size": 8, "image_size": 32, "threads": 2}
CLOSE = 0.25
"""Between predicted and measured, where a run is watched: benchmarks/diagnose.py is stricter."""


def run(url, device, *, transfer_ahead=2, **settings):
    config = LoaderConfig(**(SMALL | settings))
    setup = RunSetup(url=str(url), split="train", config=config, transfer_ahead=transfer_ahead)
    device = parse_simulated(device)
    return apply_best(setup, device, diagnose(setup, device, seconds=SECONDS), seconds=SECONDS)


def starts(found, words):
    """Whether a verdict starts with a clause, and at most goes on with what other programs use."""
    others = r"(, while other programs use \d+\.\d of \d+ cores)?: "
    return re.match(re.escape(words) + others, found.verdict) is not None


BUSY_CORES = 0.5
"""Cores that other programs use, from which they may be what a run waits for."""


@pytest.fixture
def _undisturbed(monkeypatch):
    """Tests that run beside this one explain no slow run."""
    monkeypatch.setattr(diagnosing, "disturbance", lambda *_rates, **_cores: "")


def turns(transform_s):
    """Return the images/s of settings whose transform takes so long, in one thread of a process at a time."""

    def prepare(config):
        return max(1, config.processes) / transform_s if any(config.transforms) else 2000.0

    return prepare


def predicted_is_measured(found):
    applied = found.applied
    return applied.measured_images_per_s == pytest.approx(applied.predicted_images_per_s, rel=CLOSE)


@pytest.mark.usefixtures("_undisturbed")
def test_a_run_limited_by_the_device_has_no_change_to_make(dataset, rates):
    rates()
    found = run(dataset("webdataset"), "simulated:60")

    assert (found.limit, found.fixes, found.applied) == ("compute", (), None)
    assert found.utilisation > 0.9
    assert found.transform is None
    assert "transform" not in found.verdict
    # The latter below 95 % of the device, which other programs can cause.
    assert starts(found, "The device is the limit") or starts(found, "You are waiting for the device")
    assert [stage.name for stage in found.stages] == list(STAGES)


def test_a_run_faster_than_its_device_alone_is_undecided_and_tries_no_change(dataset, rates):
    rates(step_s=lambda *_: SLOW_STEP_S, step_in_run_s=lambda device, images: images / 400)
    setup = RunSetup(url=str(dataset("webdataset")), split="train", config=LoaderConfig(**SMALL))
    found = diagnose(setup, DisturbedDevice(), seconds=SECONDS)

    assert found.verdict.startswith("Undecided: the run made ")
    assert "but the device alone took only" in found.undecided
    assert found.fixes == ()
    assert limiting_stages(found) == set()


def crowded(url, rates, monkeypatch, *, other_cores, compute_threads=0):
    rates(step_s=lambda device, images: images / 400, step_in_run_s=lambda device, images: SLOW_STEP_S + images / 400)
    monkeypatch.setattr(diagnosing, "background_cores", lambda: other_cores)
    setup = RunSetup(url=str(url), split="train", config=LoaderConfig(**SMALL))
    return diagnose(setup, CrowdedDevice(compute_threads), seconds=SECONDS)


@pytest.mark.usefixtures("_undisturbed")
def test_a_fixed_cost_for_each_step_is_lifted_by_larger_batches(dataset, rates):
    rates()
    found = run(dataset("tfrecord"), "simulated:2000,step-ms=60")

    assert found.fixes[0].name == "batch"
    assert found.fixes[0].settings == {"batch_size": 32}
    assert found.applied.measured_images_per_s > 2 * found.observed_images_per_s
    assert found.fixes[0].is_tried
    assert found.applied.predicted_images_per_s == found.fixes[0].predicted_images_per_s
    assert predicted_is_measured(found)


@pytest.mark.usefixtures("_undisturbed")
def test_too_many_threads_of_a_model_beside_decoding_are_lifted_by_fewer(dataset, rates):
    """A step of four times as many threads as cores, which wait for each other, on cores that also decode."""
    cores, before = available_cores(), torch.get_num_threads()

    def step_in_run_s(device, images):
        return images / (400 if device.compute_threads <= cores else 100)

    rates(step_s=lambda device, images: images / 400, step_in_run_s=step_in_run_s)
    torch.set_num_threads(4 * cores)
    try:
        device = training_workload("tiny_cnn", device="cpu", batch_size=SMALL["batch_size"], image_size=64)
        config = LoaderConfig(**SMALL | {"image_size": 64})
        setup = RunSetup(url=str(dataset("webdataset")), split="train", config=config)
        found = diagnose(setup, device, seconds=SECONDS)
        assert torch.get_num_threads() == 4 * cores, "as it was before the change was tried"
    finally:
        torch.set_num_threads(before)

    assert found.settings["compute_threads"] == 4 * cores
    fix = next(fix for fix in found.fixes if fix.name == "compute-threads")
    assert fix.is_tried
    assert fix.gain > 1.5
    threads = fix.settings["compute_threads"]
    assert threads <= cores
    assert fix.advice.endswith(f"instead of {4 * cores}: OMP_NUM_THREADS={threads}")


def test_a_run_that_is_watched_has_all_that_a_report_shows(dataset):
    """Whatever else this machine does meanwhile; what is concluded from its rates is tested with given ones."""
    found = run(dataset("webdataset"), "simulated:60")

    assert found.limit in get_args(Limit)
    assert found.verdict
    assert [stage.name for stage in found.stages] == list(STAGES)
    assert all(stage.images_per_s > 0 <= stage.cpu_s_per_image for stage in found.stages)
    assert 0 < found.observed_images_per_s <= 60, "a busy machine makes a simulated device slower, never faster"
    assert 0 < found.compute_alone_images_per_s <= 60
    assert 0 < found.utilisation <= 1
    assert found.wait_share + found.transfer_share + found.compute_share == pytest.approx(1)
    assert found.timeline[0].started_s == 0
    assert all(step.compute_s >= SMALL["batch_size"] / 60 for step in found.timeline)
    assert found.bytes_per_image > 0
    assert found.settings["batch_size"] == SMALL["batch_size"]
    if found.undecided:
        assert found.fixes == ()
    assert (found.applied is not None) == any(fix.needs == "restart" for fix in found.fixes)


def test_a_simulated_device_computes_on_no_core():
    device = parse_simulated("simulated:100")
    assert compute_threads(device) == 0
    with using_threads(device, 1):
        device.step(1)


@pytest.mark.usefixtures("_undisturbed")
def test_a_transfer_that_steps_wait_for_is_lifted_by_transferring_ahead(dataset, rates):
    rates()
    found = run(dataset("webdataset"), "simulated:100,transfer=120", transfer_ahead=0)

    assert found.limit in ("transfer", "compute")
    assert found.transfer_share > 0.3
    assert found.fixes[0].name == "transfer-ahead"
    assert predicted_is_measured(found)


@pytest.mark.usefixtures("_undisturbed")
def test_a_transform_that_holds_a_lock_is_lifted_by_processes(dataset, rates):
    rates(prepare=turns(0.008))
    found = run(dataset("webdataset"), "simulated:1000", transform=one_at_a_time)

    assert found.wait_share > 0.3
    if found.other_cores < BUSY_CORES:  # beside other tests the cores themselves may be the limit
        assert found.limit == "prepare"
        assert found.fixes[0].name == "workers"
        assert found.fixes[0].settings["processes"] >= 2


@pytest.mark.usefixtures("_undisturbed")
def test_a_slow_transform_is_named_and_a_run_without_it_is_a_bound_and_no_fix(dataset, rates):
    given = TransformCost(
        name="tests.support.slow_transforms:computing",
        s_per_image=0.009,
        cpu_s_per_image=0.005,
        prepare_s_per_image=0.01,
        holds_lock=True,
        without=None,
    )
    rates(prepare=turns(0.005), transform=given)
    found = run(dataset("webdataset"), "simulated:3000", transform=computing)

    cost = found.transform
    assert cost.name == "tests.support.slow_transforms:computing"
    assert 0.005 <= cost.cpu_s_per_image < 0.007
    assert cost.cpu_s_per_image <= cost.s_per_image < cost.prepare_s_per_image
    assert cost.s_per_image > 0.5 * cost.prepare_s_per_image
    assert {fix.name for fix in found.fixes} <= {"workers", "resize", "batch"}
    assert all(fix.settings["threads"] <= available_cores() for fix in found.fixes if fix.name == "workers")
    if found.undecided:  # other tests keep the machine busy
        assert cost.without is None
    elif found.limit in ("prepare", "cores"):
        assert starts(found, f"You are waiting for your transform {cost.name}")
        assert "making it faster can bring up to that" in found.verdict
        assert "No single change" not in found.verdict
        assert cost.without.is_tried
        assert cost.without.gain > 1.5


def tried_with(rates, fixes, limit="prepare", again=lambda: 100.0):
    """The names and rates that are left, and the names that were tried."""
    tried = []

    def rate_of(fix):
        tried.append(fix.name)
        return rates.get(fix.name)

    left = _try_leading(fixes, 100.0, limit, rate_of, again)
    return [(fix.name, fix.images_per_s, fix.is_tried) for fix in left], tried


FIXES = [fix_of("batch", 140.0), fix_of("workers", 200.0), fix_of("prefetch", 110.0)]


def test_trials_end_when_a_change_reaches_its_predicted_rate_far_before_the_others():
    left, tried = tried_with({"workers": 190.0}, FIXES)
    assert tried == ["workers"]
    assert left == [("workers", 190.0, True), ("batch", 140.0, False), ("prefetch", 110.0, False)]


def test_a_change_predicted_near_the_best_is_tried_as_well():
    fixes = [fix_of("workers", 200.0), fix_of("resize", 160.0, "rebuild"), fix_of("batch", 140.0)]
    left, tried = tried_with({"workers": 195.0, "resize": 230.0}, fixes)
    assert tried == ["workers", "resize"]
    assert left == [("resize", 230.0, True), ("workers", 195.0, True), ("batch", 140.0, False)]


def test_a_change_that_misses_its_prediction_is_followed_by_the_next():
    left, tried = tried_with({"workers": 140.0, "batch": 160.0}, FIXES)
    assert tried == ["workers", "batch"]
    assert left == [("batch", 160.0, True), ("workers", 140.0, True), ("prefetch", 110.0, False)]


def test_a_change_that_gains_nothing_is_left_out():
    assert tried_with({"workers": 104.9, "batch": 0.0, "prefetch": 99.0}, FIXES) == (
        [],
        ["workers", "batch", "prefetch"],
    )


def test_a_small_gain_over_a_run_that_was_slow_by_chance_is_none():
    left, _ = tried_with({"workers": 112.0, "batch": 118.0}, FIXES, again=lambda: 108.0)
    assert left == [("batch", 118.0, True), ("prefetch", 110.0, False)]


def test_a_run_is_watched_once_more_only_where_the_best_gain_is_small():
    def again():
        raise AssertionError("watched again")

    assert tried_with({"workers": 190.0}, FIXES, again=again)[0][0] == ("workers", 190.0, True)
    assert tried_with({"location": None}, [fix_of("location", 115.0, "copy")], again=again)[0]
    assert tried_with({"workers": 50.0}, FIXES[1:2], again=again)[0] == []


def test_a_change_that_cannot_be_tried_keeps_its_prediction():
    fixes = [*FIXES, fix_of("location", 300.0, "copy")]
    left, tried = tried_with({}, fixes)
    assert tried == ["location"]
    assert left[0] == ("location", 300.0, False)


@pytest.mark.parametrize("count", [MOST_TRIED, MOST_TRIED + 2])
def test_the_number_of_trials_is_bounded(count):
    fixes = [fix_of(f"change-{number}", 200.0 - number) for number in range(count)]
    left, tried = tried_with({fix.name: 50.0 for fix in fixes}, fixes)
    assert len(tried) == MOST_TRIED
    assert len(left) == count - MOST_TRIED


def test_settings_of_one_change_are_tried_one_after_the_other():
    two = [replace(fix_of("workers", 200.0), settings={"threads": 2}), replace(fix_of("workers", 180.0), advice="b")]
    left, tried = tried_with({"workers": 110.0}, two)
    assert tried == ["workers", "workers"]
    assert [fix[1] for fix in left] == [110.0]


def test_a_tried_change_is_ranked_after_a_much_higher_prediction():
    fixes = [fix_of("resize", 300.0, "rebuild"), fix_of("cache", 280.0)]
    left, _ = tried_with({"cache": 250.0}, fixes)
    assert [fix[0] for fix in left] == ["resize", "cache"]


# Changes


def names(*fixes):
    return [each.name for each in ranked(fixes)]


def test_changes_are_ranked_by_rate_and_the_best_of_each_name_stays():
    found = ranked([fix_of("workers", 100), fix_of("cache", 300), fix_of("workers", 200)])
    assert [(each.name, each.images_per_s) for each in found] == [("cache", 300), ("workers", 200)]
    assert ranked([]) == []


def test_among_the_best_the_least_effort_comes_first():
    assert names(fix_of("resize", 1000, "rebuild"), fix_of("workers", 1000 * TIE + 1)) == ["workers", "resize"]
    assert names(fix_of("resize", 1000, "rebuild"), fix_of("workers", 1000 * TIE - 1)) == ["resize", "workers"]


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (
            {"image_size": 96},
            "Store the images with a short side of 110 pixels (random crops are then enlarged, the "
            "smallest of a square image from 49 to 96 pixels: check the accuracy): COMMAND",
        ),
        ({"image_size": 96, "augment": False}, "Store the images with a short side of 110 pixels: COMMAND"),
        ({"image_size": 96, "scale": (0.8, 1.0)}, "Store the images with a short side of 110 pixels: COMMAND"),
        (
            {"image_size": 224, "scale": (0.08, 1.0)},
            "Store the images with a short side of 256 pixels (random crops are then enlarged, the "
            "smallest of a square image from 72 to 224 pixels: check the accuracy): COMMAND",
        ),
    ],
)
def test_the_advice_to_store_smaller_images_says_how_much_crops_of_them_are_enlarged(settings, advice):
    assert advice_to_shrink(LoaderConfig(batch_size=8, **settings), "COMMAND") == advice


@given(image_size=st.integers(8, 512), smallest=st.floats(0.01, 1.0))
def test_the_side_that_the_advice_names_is_that_of_the_smallest_crop_of_a_square_image(image_size, smallest):
    config = LoaderConfig(batch_size=8, image_size=image_size, scale=(smallest, 1.0), ratio=(1.0, 1.0))
    advice = advice_to_shrink(config, "COMMAND")
    side = config.short_side * math.sqrt(smallest)
    assert ("enlarged" in advice) == (round(side) < image_size)
    assert "enlarged" not in advice or f"from {round(side)} to {image_size} pixels:" in advice


@pytest.mark.parametrize("is_adopted", [False, True])
def test_the_advice_to_store_smaller_images_is_a_command_that_runs_as_printed(tmp_path, is_adopted):
    source = class_folders(tmp_path / "my pets")
    if is_adopted:
        adopt_here(source, tmp_path / "my shards")
    else:
        build_own(source, tmp_path / "my shards")
    words = shlex.split(conversion(open_dataset(str(tmp_path / "my shards"), "train"), 12))
    run = dataprep(*words[1:], "--workers", "1")
    assert run.returncode == 0, run.stderr
    assert [word for word in words if word.startswith("--")] == ["--output", "--format", "--resize"]
    smaller = open_dataset(str(tmp_path / ("my pets-12" if is_adopted else "my shards-12")), "train")
    assert smaller.manifest.options["images"]["short_side"] == 12
    assert smaller.split.samples == 2 * SPLITS["train"]


def test_the_command_that_stores_smaller_images_keeps_the_captions(tmp_path):
    (tmp_path / "pairs").mkdir()
    members = [("a.jpg", picture(1)), ("a.txt", b"one"), ("b.jpg", picture(2)), ("b.txt", b"two")]
    (tmp_path / "pairs/0.tar").write_bytes(tar_of(members))
    adopt_here(tmp_path / "pairs")
    words = shlex.split(conversion(open_dataset(str(tmp_path / "pairs"), "train"), 12))
    run = dataprep(*words[1:], "--workers", "1")
    assert run.returncode == 0, run.stderr
    assert list(open_dataset(str(tmp_path / "pairs-12"), "train").manifest.features) == ["txt"]
