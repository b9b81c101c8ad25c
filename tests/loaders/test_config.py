"""Groups of views are checked, and lie one after the other in a batch's memory."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from dataprep.errors import UsageError
from loaders import PilTransform, Views, open_loader
from loaders.config import LoaderConfig, checked_groups, spans

WRONG = [
    ({"batch_size": "8"}, "batch_size must be a whole number, got '8'"),
    ({"batch_size": True}, "batch_size must be a whole number, got True"),
    ({"batch_size": None}, "batch_size must be a whole number, got None"),
    ({"batch_size": 2**70}, f"batch_size must be less than 2^63, got {2**70}"),
    ({"processes": 3.5}, "processes must be a whole number, got 3.5"),
    ({"processes": -1}, "processes must be 0 or more, got -1"),
    ({"threads": math.nan}, "threads must be a whole number, got nan"),
    ({"seed": 2**70}, f"seed must be less than 2^64, got {2**70}"),
    ({"seed": "0"}, "seed must be a whole number, got '0'"),
    ({"resize": "letter"}, "resize must be a number of pixels or 'letterbox', got 'letter'"),
    ({"scale": (0.1, "1")}, "scale must be a pair of numbers, got (0.1, '1')"),
    ({"ratio": (0.5, math.inf)}, "ratio must be a range above 0, got (0.5, inf)"),
    ({"flip": "yes"}, "flip must be a probability, got 'yes'"),
    ({"flip": math.nan}, "flip must be a probability, got nan"),
    ({"check_digests": 1}, "check_digests must be True or False, got 1"),
    ({"on_error": None}, "on_error must be one of raise, skip, got None"),
    ({"transform": "flip"}, "transform must be a function, got 'flip'"),
    ({"cache_dir": 7}, "cache_dir must be a folder, got 7"),
    ({"cache_dir": ""}, "cache_dir must be a folder, got ''"),
    ({"metrics_port": 2**16}, "metrics_port must be less than 2^16, got 65536"),
    ({"metrics_port": -1}, "metrics_port must be 0 or more, got -1"),
    ({"metrics_address": ""}, "metrics_address must be an address of this machine, e.g. 127.0.0.1, got ''"),
    ({"stall_s": 0}, "stall_s must be a number of seconds above 0, got 0"),
    ({"deadline_s": math.inf}, "deadline_s must be a number of seconds above 0, got inf"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_setting_of_the_wrong_type_says_what_was_got_and_expected(settings, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        open_loader("nowhere", **{"batch_size": 8, **settings})


@pytest.mark.parametrize("name", LoaderConfig.__dataclass_fields__)
def test_any_value_of_any_setting_is_accepted_or_refused_by_name(name):
    refused = []
    for value in (object, b"x", [None], {}, -1, math.nan, "", 2**70):
        try:
            LoaderConfig(**{"batch_size": 8, name: value})
        except UsageError as error:
            refused.append(str(error))
    assert [text for text in refused if name not in text or "\n" in text] == []


@pytest.mark.parametrize("place", [{"url": 7}, {"url": None}, {"split": 7}], ids=str)
def test_a_url_or_split_of_another_type_is_refused(place):
    with pytest.raises(UsageError, match=r"url and split must be a folder or URL and a name, got "):
        open_loader(**{"url": "nowhere", "batch_size": 8, **place})


def test_numpy_numbers_lists_and_paths_are_accepted():
    config = LoaderConfig(
        batch_size=np.int64(8), flip=np.float32(0.5), scale=[0.5, 1], fields=["caption"], cache_dir=Path("cache")
    )
    assert (type(config.batch_size), config.scale, config.fields) == (int, (0.5, 1), ("caption",))
    assert config.cache_dir == str(Path.cwd() / "cache")


class Renamed:
    state_name = "before.Renamed"

    def __call__(self, image_HWC, rng):
        return image_HWC


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (None, None),
        (np.fliplr, "numpy.fliplr"),
        (Renamed(), "before.Renamed"),
        (PilTransform(len), "loaders.transforms.PilTransform"),
    ],
    ids=["none", "function", "renamed", "pil"],
)
def test_a_state_names_a_transform_as_its_class_says_or_by_where_it_is_defined(transform, name):
    """PilTransform's name is in states of version 0.1.0."""
    assert LoaderConfig(batch_size=8, transform=transform).sequence_document()["transform"] == name


def test_ranks_of_a_host_and_their_worker_processes_share_its_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(96))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    threads = [LoaderConfig(batch_size=8, processes=processes).num_threads for processes in (0, 3, 50)]
    assert threads == [12, 4, 1]
    assert LoaderConfig(batch_size=8, threads=16).num_threads == 16


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "views: count must be 1 to 64, got 0"),
        ({"count": True}, "views: count must be a whole number, got True"),
        ({"size": 2**14 + 1}, "views: size must be 1 to 16,384, got 16,385"),
        ({"min_area": 0}, "views: min_area and max_area must be a range within 0 to 1, got 0, 1.0"),
        ({"min_area": 0.5, "max_area": 0.4}, "min_area and max_area must be a range within 0 to 1, got 0.5, 0.4"),
        ({"max_area": "1"}, "min_area and max_area must be a range within 0 to 1, got 0.2, '1'"),
        ({"transform": 1}, "views: transform must be a function, got 1"),
    ],
)
def test_a_group_of_views_is_checked(values, message):
    with pytest.raises(UsageError, match=message):
        Views(**values)


def test_a_group_may_stand_alone_and_a_list_becomes_a_tuple():
    assert checked_groups(Views()) == checked_groups([Views()]) == (Views(),)
    assert checked_groups([Views(count=60), Views(count=4)])[1].scale == (0.2, 1.0)
    for wrong in ((), 3, "views", [Views(), None]):
        with pytest.raises(UsageError, match=r"views must be loaders.Views or a tuple of them, got "):
            checked_groups(wrong)
    with pytest.raises(UsageError, match="views: an image may have at most 64 views, got 65"):
        checked_groups((Views(count=60), Views(count=5)))


def test_groups_lie_one_after_the_other():
    found = spans((Views(count=2, size=4), Views(count=3, size=2)), rows=5)
    assert [each.shape for each in found] == [(5, 2, 4, 4, 3), (5, 3, 2, 2, 3)]
    assert [(each.start, each.stop) for each in found] == [(0, 480), (480, 660)]
    assert spans((), rows=5) == []
