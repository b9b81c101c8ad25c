"""Attacks that must be withstood: a sample here, all of them in `make soak SHOW=attacks`."""

import pytest

from tests.attacks import all_attacks

SAMPLE = [attack for attack in all_attacks() if attack.sampled]


@pytest.mark.parametrize("attack", SAMPLE, ids=lambda attack: attack.name)
def test_attack_is_withstood(attack, tmp_path):
    assert attack.run(tmp_path)


def test_names_of_attacks_are_unique():
    names = [attack.name for attack in all_attacks()]
    assert len(names) == len(set(names))
