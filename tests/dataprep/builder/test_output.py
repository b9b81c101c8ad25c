"""One plan holds a place: who comes second joins it, or is refused with what differs."""

import json

import pytest

from dataprep import __version__
from dataprep.builder.output import OvertakenError, claim_place, read_claim, refuse_overtaken, withdraw
from dataprep.dataset.paths import BUILD, OVERWRITING, PLAN_JSON
from dataprep.errors import FormatError, UsageError
from tests.support.plans import planned, small_plan


def test_second_build_of_a_plan_joins_the_first(storage):
    first = claim_place(storage, planned(small_plan()))
    assert claim_place(storage, planned(small_plan())) == first == read_claim(storage)
    assert first.root.startswith(f"{BUILD}/{small_plan().plan_hash}/")
    refuse_overtaken(storage, first)


def test_version_of_the_package_is_named_beside_the_plan_and_not_in_its_hash(storage, monkeypatch):
    first = claim_place(storage, planned(small_plan()))
    document = json.loads(first.pointer)
    assert document["version"] == __version__
    assert document["plan_hash"] == small_plan().plan_hash
    assert "version" not in small_plan().document()
    monkeypatch.setattr("dataprep.builder.output.__version__", "9.9.9")
    assert claim_place(storage, planned(small_plan())) == first, "a newer version goes on with the same plan"


def test_other_plan_is_refused_with_what_differs(storage):
    claim_place(storage, planned(small_plan()))
    with pytest.raises(UsageError, match=r"another plan is under way there: `seed` is 0 there, 7 here"):
        claim_place(storage, planned(small_plan(seed=7)))


def test_withdrawn_place_can_be_claimed_again(storage):
    withdraw(storage, claim_place(storage, planned(small_plan())))
    assert read_claim(storage) is None
    assert not list(storage.list(f"{BUILD}/"))
    assert claim_place(storage, planned(small_plan(seed=7))).plan.options.seed == 7


def test_build_whose_plan_was_removed_or_replaced_is_overtaken(storage):
    claim = claim_place(storage, planned(small_plan()))
    storage.delete(PLAN_JSON)
    with pytest.raises(OvertakenError, match="was overtaken: it was removed, or another run has finished it"):
        refuse_overtaken(storage, claim)
    other = claim_place(storage, planned(small_plan(seed=7)))
    with pytest.raises(OvertakenError, match=f"plan {other.plan.plan_hash[:12]} owns the output"):
        refuse_overtaken(storage, claim)


def test_no_build_begins_during_an_overwrite(storage):
    storage.create(OVERWRITING, b"[]")
    with pytest.raises(UsageError, match="an `overwrite` is under way there"):
        claim_place(storage, planned(small_plan()))
    assert storage.stat(PLAN_JSON) is None


@pytest.mark.parametrize("change", [{"codecs": {}}, {"build": "../.."}, {"options": None}])
def test_edited_plan_is_refused(storage, change):
    claim = claim_place(storage, planned(small_plan()))
    storage.replace(PLAN_JSON, json.dumps(json.loads(claim.pointer) | change).encode(), claim.pointer)
    with pytest.raises(FormatError, match=rf"{PLAN_JSON}.*start over with `overwrite`"):
        read_claim(storage)
