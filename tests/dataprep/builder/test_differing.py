"""What differs between plans, in the words of a command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, replace

import pytest

from dataprep.builder.differing import FIELDS, SHOWN, WORDS, field_of, plan_differences
from dataprep.builder.images import ImagePolicy
from dataprep.builder.plan import BuildOptions, Plan
from dataprep.commands.build import BuildCoco, BuildCustom, BuildDataset, BuildFolder, BuildTable
from dataprep.commands.build_laion import BuildLaion
from dataprep.commands.convert import Convert
from dataprep.fetched.collect import RowOptions
from dataprep.sources.base import Conversion, OwnData
from tests.support.plans import small_plan


def leaves(values: dict[str, object], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_every_option_of_plans_is_a_field_of_a_request():
    own, converted = OwnData(name="pets"), Conversion(plan_hash="0", revision=1, was_shuffled=True)
    options = BuildOptions(dataset="folder", format="tfrecord", splits=(), own=own, converted=converted)
    web = {"columns", "rows_per_shard", *leaves({"rows": asdict(RowOptions())})}
    paths = {*leaves(asdict(options)), *web}
    kinds = (BuildDataset, BuildCoco, BuildFolder, BuildTable, BuildCustom, BuildLaion, Convert)
    fields_of_requests = {each.name for kind in kinds for each in fields(kind)}
    assert {field_of(path) for path in paths - {*WORDS}} <= fields_of_requests
    assert {*FIELDS, *WORDS} <= paths


def with_split(plan: Plan, **changes: object) -> Plan:
    return replace(plan, splits=(replace(plan.splits[0], **changes),))


OWN = OwnData(name="pets")
OTHERS = {
    "a size": (
        small_plan(images=ImagePolicy(short_side=256)),
        "`resize` is not given there, 256 here",
    ),
    "a switch": (
        small_plan(images=ImagePolicy(apply_exif=True)),
        "`apply_exif` is not given there, given here",
    ),
    "restart markers": (
        small_plan(images=ImagePolicy(jpeg="restart")),
        "`jpeg` is untouched there, restart here",
    ),
    "another number of images": (
        small_plan((2, 3)),
        "val has 3 images there, 5 here",
    ),
    "another number of shards": (
        small_plan((1, 1, 1)),
        "val has 2 shards there, 3 here",
    ),
    "another archive": (
        with_split(small_plan(), sources=({"name": "ILSVRC2012_img_val.tar", "bytes": 1200},)),
        "the original ILSVRC2012_img_val.tar has 1,000 bytes there, 1,200 here",
    ),
    "archives of other names": (
        with_split(small_plan(), sources=({"name": "a\nb.tar", "bytes": 1000},)),
        "the original ILSVRC2012_img_val.tar is only there; the original a\N{REPLACEMENT CHARACTER}b.tar is only here",
    ),
    "files at other places": (
        with_split(small_plan(), enumeration_sha256="1" * 64),
        "val has 3 images there and here, but files of other names, sizes or classes",
    ),
    "another split": (
        with_split(small_plan(), name="train"),
        "train is only here, with 3 images; val is only there, with 3 images",
    ),
    "another number of classes": (
        replace(small_plan(), classes=("n01440764",)),
        "there are 2 classes there, 1 here",
    ),
    "another class": (
        replace(small_plan(), classes=("n01440764", "n1")),
        "the class n01443537 is only there, n1 only here",
    ),
    "another codec": (
        replace(small_plan(), codecs={**small_plan().codecs, "pillow": "1.0"}),
        f"pillow is {small_plan().codecs['pillow']} there, 1.0 here",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_difference_names_the_flag_or_the_count_and_both_values(case):
    ours, sentence = OTHERS[case]
    assert plan_differences(ours, small_plan()) == sentence


def test_words_about_ones_own_data_are_named_by_their_flags():
    ours = small_plan(own=replace(OWN, val_fraction=0.1, split_seed=7, defaults=(("age", "-1"),)), seed=7)
    assert plan_differences(ours, small_plan(own=OWN)) == (
        "`seed` is 0 there, 7 here; `val_fraction` is 0 there, 0.1 here; `default` is not given there, age=-1 here"
    )


def test_addresses_of_two_commits_are_told_whole():
    there, here = (f"https://huggingface.co/datasets/ILSVRC/imagenet-1k/tree/{digit * 40}" for digit in "12")
    sentence = plan_differences(small_plan(own=replace(OWN, origin=here)), small_plan(own=replace(OWN, origin=there)))
    assert sentence == f"`origin` is {there} there, {here} here"


def test_of_many_differences_the_first_are_named():
    sources = tuple({"name": f"{number}.tar", "bytes": 1} for number in range(SHOWN + 3))
    sentence = plan_differences(with_split(small_plan(), sources=sources), small_plan())
    assert sentence.count(" is only here") == SHOWN
    assert sentence.endswith("; and 4 more differences")
