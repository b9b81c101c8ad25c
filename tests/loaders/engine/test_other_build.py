"""What is said of a state whose dataset was built anew."""

import copy
import json

import pytest

from dataprep.errors import UsageError
from loaders import MixtureSource, mixture, open_loader
from loaders.loader import other_builds

OURS = {"dataset": {"name": "pets", "plan": "0123456789abcdef", "revision": 1}, "samples": 7100, "seed": 0}


def other(**changes):
    found = copy.deepcopy(OURS)
    found["dataset"] |= changes
    return found


def test_another_plan_is_another_build_and_a_later_revision_is_not():
    before = {**other(plan="fedcba9876543210"), "samples": 5900}
    assert other_builds(OURS, before) == [
        "5,900 images then (plan fedcba987654, revision 1), 7,100 images now (plan 0123456789ab, revision 1)"
    ]
    assert other_builds(OURS, other(revision=2)) == []
    assert other_builds(OURS, {**OURS, "seed": 1}) == []


def test_datasets_of_a_mixture_are_compared_by_name():
    ours, theirs = ({"datasets": {"pets": each, "cats": OURS}} for each in (OURS, other(plan="f")))
    (line,) = other_builds(ours, theirs)
    assert line.startswith("pets: 7,100 images then (plan f, revision 1), 7,100 images now ")
    assert other_builds(ours, {"datasets": {}}) == []


@pytest.mark.parametrize("mixed", [False, True])
def test_a_loader_refuses_the_state_of_another_build_and_says_what_to_do(dataset, mixed):
    url = str(dataset("webdataset"))
    mix = mixture([MixtureSource(url=url, name="pets")])
    with open_loader(mix if mixed else url, batch_size=4, image_size=32) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
        sequence = state["sequence"]["datasets"][0] if mixed else state["sequence"]
        where = sequence if mixed else sequence["dataset"]
        plan, images = where["plan"], sequence["samples"]
        where["plan"], sequence["samples"] = "f" * 16, images - 9
        with pytest.raises(UsageError) as caught:
            loader.load_state_dict(state)
    assert str(caught.value).partition(": the dataset was ")[2] == (
        f"built or adopted again since the state was made, or is another build: {'pets: ' if mixed else ''}"
        f"{images - 9} images then (plan ffffffffffff, revision 1), {images} images now (plan {plan[:12]}, "
        "revision 1); its images have another order: load the weights of the model alone, without this state, to begin "
        'the new order at its first image ("PyTorch" in docs/loaders.md shows how)'
    )
