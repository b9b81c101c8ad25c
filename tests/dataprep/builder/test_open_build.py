"""A build under way is opened once a process, and only while it holds its place."""

import pytest

from dataprep.builder.output import OvertakenError, claim_place, open_build, withdraw
from tests.support.plans import planned, small_plan


def test_build_is_opened_once_a_process(storage):
    claim = claim_place(storage, planned(small_plan()))
    build = open_build(storage.url, claim.root)
    assert open_build(storage.url, claim.root) is build
    assert (build.root, build.plan.plan_hash) == (claim.root, small_plan().plan_hash)
    build.check()
    withdraw(storage, claim)
    with pytest.raises(OvertakenError):
        build.check()


def test_overtaken_build_is_not_opened(storage):
    old = claim_place(storage, planned(small_plan()))
    withdraw(storage, old)
    with pytest.raises(OvertakenError, match=rf"expected plan {old.plan.plan_hash[:12]}, found none"):
        open_build(storage.url, old.root)
    claim_place(storage, planned(small_plan(seed=7)))
    with pytest.raises(OvertakenError, match="missing, or from a different build"):
        open_build(storage.url, old.root)


def test_build_is_opened_by_what_another_process_has_read_of_it(storage):
    claim = claim_place(storage, planned(small_plan()))
    withdraw(storage, claim)
    build = open_build(storage.url, claim.root, claim.pointer)
    assert (build.claim, build.plan) == (claim, small_plan())
    with pytest.raises(OvertakenError):
        build.check()
    with pytest.raises(OvertakenError, match="missing, or from a different build"):
        open_build(storage.url, f"{claim.root}0", claim.pointer)
