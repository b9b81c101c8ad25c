"""Mixup and CutMix beside the papers' own formulations, pixel by pixel and draw by draw."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import UsageError
from tests.support.on_use import on_use
from train.batches.mixing import MODES, MixConfig, Mixer, draw_mixes

stats = on_use("scipy.stats")
SIDE, BATCH, CLASSES = 12, 8, 5
CONFIGS = {
    "mixup": MixConfig(mixup=0.8),
    "cutmix": MixConfig(cutmix=1.0),
    "sides": MixConfig(cutmix_minmax=(0.2, 0.8)),
    "both": MixConfig(mixup=0.8, cutmix=1.0, prob=0.7, mode="elem"),
}


def mixes(config: MixConfig, batches: int, *, side: int = 64):
    """Return what was mixed into the first batches, one after the other."""
    return [
        draw_mixes(config, seed=3, positions=range(first, first + BATCH), batch_size=BATCH, image_size=side)
        for first in range(0, batches * BATCH, BATCH)
    ]


def areas(found, side: int = 64) -> np.ndarray:
    """Return the share that was cut of the first image of each batch."""
    return np.array([(box[1] - box[0]) * (box[3] - box[2]) for box in (each.box_N4[0] for each in found)]) / side**2


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=25)
@given(batch=st.integers(0, 1000))
def test_pixels_and_labels_are_mixed_as_the_papers_say(name, batch):
    config, positions = CONFIGS[name], range(batch * BATCH, (batch + 1) * BATCH)
    generator = torch.Generator().manual_seed(batch)
    images = torch.randn(BATCH, 3, SIDE, SIDE, generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    mixer = Mixer(config=config, put=lambda rows: rows, seed=3, batch_size=lambda: BATCH, num_classes=CLASSES)
    mixed, shares = mixer(images, labels, images.flip(0), labels.flip(0), positions)
    drawn = draw_mixes(config, seed=3, positions=positions, batch_size=BATCH, image_size=SIDE)
    for index in range(BATCH):
        other = BATCH - 1 - index
        top, bottom, left, right = drawn.box_N4[index]
        assert 0 <= top <= bottom <= SIDE
        assert 0 <= left <= right <= SIDE
        weight = float(drawn.weight_N[index])
        expected = weight * images[index] + (1 - weight) * images[other]
        expected[:, top:bottom, left:right] = images[other][:, top:bottom, left:right]
        assert torch.allclose(mixed[index], expected, atol=1e-6)
        own = weight * (1 - (bottom - top) * (right - left) / SIDE**2)
        wanted = torch.zeros(CLASSES)
        wanted[labels[index]] += own
        wanted[labels[other]] += 1 - own
        assert torch.allclose(shares[index], wanted, atol=1e-6)


def test_shares_of_mixup_follow_the_beta_distribution():
    found = [float(each.share_N[0]) for each in mixes(MixConfig(mixup=0.8), 1500)]
    assert stats.kstest(found, stats.beta(0.8, 0.8).cdf).pvalue > 1e-3


def test_areas_of_cutmix_follow_its_authors_formula():
    """The authors' `rand_bbox`, in numbers of another generator."""
    rng, theirs, side = np.random.RandomState(0), [], 64
    for kept in rng.beta(1.0, 1.0, 4000):
        cut = int(side * math.sqrt(1.0 - kept))
        sides = [np.clip(at + cut // 2, 0, side) - np.clip(at - cut // 2, 0, side) for at in rng.randint(0, side, 2)]
        theirs.append(sides[0] * sides[1] / side**2)
    assert stats.ks_2samp(areas(mixes(MixConfig(cutmix=1.0), 1500)), theirs).pvalue > 1e-3


def test_sides_of_boxes_are_within_the_given_range():
    boxes = np.array([each.box_N4[0] for each in mixes(MixConfig(cutmix_minmax=(0.25, 0.75)), 1000)])
    for start, stop in ((0, 1), (2, 3)):
        sides = boxes[:, stop] - boxes[:, start]
        assert set(sides) == set(range(16, 48))
        assert (boxes[:, start].min(), boxes[:, stop].max()) == (0, 64)


def test_batches_are_mixed_and_cut_with_the_given_probabilities():
    config = MixConfig(mixup=1.0, cutmix=1.0, prob=0.6, switch_prob=0.25, mode="elem")
    found = mixes(config, 500)
    weight, box = (np.concatenate([getattr(each, name) for each in found]) for name in ("weight_N", "box_N4"))
    is_mixed = weight < 1
    is_sharded = (box[:, 1] > box[:, 0]) & (box[:, 3] > box[:, 2])
    count = len(weight)
    assert not (is_mixed & is_sharded).any()
    for share, expected in ((is_mixed.mean(), 0.6 * 0.75), (is_sharded.mean(), 0.6 * 0.25)):
        # Some boxes have no area, and one share in a hundred is 1 when rounded.
        assert abs(share - expected) < 0.01 + 4 * math.sqrt(expected * (1 - expected) / count)


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_draws_once_for_a_batch_a_pair_or_an_image(mode):
    for each in mixes(MixConfig(mixup=0.8, mode=mode), 20):
        shares = each.share_N.tolist()
        assert len(set(shares)) == {"batch": 1, "pair": BATCH // 2, "elem": BATCH}[mode]
        assert (shares == shares[::-1]) == (mode != "elem")


def test_mixing_on_two_hosts_equals_mixing_on_one():
    """Rows of two hosts, one after the other as a mesh has them, against one host's rows."""
    torch.manual_seed(0)
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    config = MixConfig(mixup=0.8, cutmix=1.0, mode="elem")
    settings = {"config": config, "put": lambda rows: rows, "seed": 1, "batch_size": lambda: 8, "num_classes": 5}
    mixed, shares = Mixer(**settings)(images, labels, images.flip(0), labels.flip(0), range(24, 32))

    hosts = torch.cat([torch.arange(0, 8, 2), torch.arange(1, 8, 2)])
    for rank in (0, 1):
        mine = hosts[4 * rank : 4 * rank + 4]
        theirs = hosts.flip(0)[4 * rank : 4 * rank + 4]  # of the whole batch, turned
        positions = range(24 + rank, 32, 2)
        part, part_shares = Mixer(**settings)(images[mine], labels[mine], images[theirs], labels[theirs], positions)
        assert torch.equal(part, mixed[mine])
        assert torch.equal(part_shares, shares[mine])


def test_each_batch_has_draws_of_its_own():
    first, second = mixes(CONFIGS["both"], 2)
    assert first.share_N.tolist() != second.share_N.tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [({"cutmix_minmax": (0.8, 0.2)}, "`cutmix_minmax` must be a range within 0 to 1, got 0.8 0.2")],
)
def test_values_out_of_range_are_refused(values, message):
    with pytest.raises(UsageError, match=message):
        MixConfig(**values)
