"""Plans, their digests, and what differs between two of them, in the words of a command line."""

from collections.abc import Iterator
from dataclasses import asdict, fields, replace

import pytest

from dataprep.builder.images import RESTART_LIBRARY, ImagePolicy, library_version
from dataprep.builder.plan import (
    FIELDS,
    SHOWN,
    WORDS,
    BuildOptions,
    FileDigest,
    Plan,
    digest_of,
    fault_of,
    field_of,
    physical_key,
    plan_differences,
    plan_from_document,
    planned_codecs,
    refuse_other_codecs,
)
from dataprep.commands.build import BuildCoco, BuildCustom, BuildDataset, BuildFolder, BuildTable
from dataprep.commands.build_laion import BuildLaion
from dataprep.commands.convert import Convert
from dataprep.errors import UsageError
from dataprep.fetched.collect import RowOptions
from dataprep.formats.tfds import TfdsNames
from dataprep.sources.base import Conversion, OwnData
from dataprep.storage.checksums import HashingWriter
from tests.support.damage import flipped
from tests.support.plans import small_plan

OPTIONS = small_plan().options


def plan_of(**changes):
    return replace(small_plan(), options=replace(OPTIONS, **changes))


def test_plan_is_read_back_from_its_document_with_the_same_hash():
    plan = plan_of(images=ImagePolicy(short_side=256))
    again = plan_from_document(plan.document())
    assert again == plan
    assert again.plan_hash == plan.plan_hash
    assert plan.locate(4 - 3) == (plan.splits[0], 1)
    with pytest.raises(UsageError, match="shard 2 past the end"):
        plan.locate(2)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"format": "tfrecord"},
        {"shard_bytes": 5},
        {"num_shards": 2},
        {"repeat": "physical"},
        {"allow_partial": True},
        {"images": ImagePolicy(check="header")},
        {"images": ImagePolicy(on_bad="reject")},
        {"images": ImagePolicy(apply_exif=True)},
        {"images": ImagePolicy(short_side=9)},
        {"images": ImagePolicy(jpeg="restart")},
        {"format": "tfrecord", "tfds": TfdsNames(val="validation")},
    ],
)
def test_every_option_that_changes_bytes_changes_the_hash(change):
    assert plan_of(**change).plan_hash != plan_of().plan_hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "`seed` must be 0 or more, got -1"),
        ({"shard_bytes": 0}, "`shard_bytes` must be 1 or more, got 0"),
        ({"num_shards": 0}, "`num_shards` must be 1 or more, got 0"),
        ({"splits": ()}, "no split to build"),
        ({"images": ImagePolicy(short_side=0)}, "`resize` must be 1 pixel or more, got 0"),
        ({"images": ImagePolicy(quality=101)}, "`quality` must be 1..100, got 101"),
        ({"images": ImagePolicy(check="none", short_side=9)}, "`check` none reads no image"),
        ({"tfds": TfdsNames(val="validation")}, "`val_name` need `format` tfrecord"),
        ({"format": "tfrecord", "tfds": TfdsNames(val="test")}, "`val_name` test: another split has this name"),
        ({"images": ImagePolicy(check="none", jpeg="restart")}, "`check` none reads no image, so `jpeg` restart needs"),
    ],
)
def test_bad_options_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        replace(OPTIONS, **change)


def test_names_in_tfds_are_those_of_files_and_come_back():
    plan = plan_of(format="tfrecord", tfds=TfdsNames(name="imagenet2012", version="5.1.0", val="validation"))
    assert plan_from_document(plan.document()) == plan
    assert plan.options.shard_file("val", 1, 2) == "imagenet2012-validation.tfrecord-00001-of-00002"
    assert "tfds" not in plan_of(format="tfrecord").document()["options"]
    assert "`tfds_version` is 1.0.0 there, 5.1.0 here" in plan_differences(plan, plan_of(format="tfrecord"))


def test_restarts_are_in_the_document_only_if_they_are_asked_for():
    images = {"check": "decode", "on_bad": "repair", "apply_exif": False, "short_side": None, "quality": 95}
    assert plan_of().document()["options"]["images"] == images
    restarts = plan_of(images=ImagePolicy(jpeg="restart"))
    assert restarts.document()["options"]["images"] == {**images, "jpeg": "restart"}
    assert plan_from_document(restarts.document()) == restarts


def test_the_library_that_writes_restarts_is_a_codec_of_their_plan_only():
    planned = planned_codecs(ImagePolicy(jpeg="restart"))
    assert planned == {**planned_codecs(ImagePolicy()), RESTART_LIBRARY: library_version()}
    refuse_other_codecs(planned)
    message = (
        rf"^this worker has libjpeg-turbo {library_version()}, but the plan was made with libjpeg-turbo 1\.0; "
        r"different versions write different bytes\. Install tpu-dataprep with the planned one on every worker$"
    )
    with pytest.raises(UsageError, match=message):
        refuse_other_codecs({**planned, RESTART_LIBRARY: "1.0"})


def test_keys_of_repeats_stay_unique_and_short():
    keys = ["a/b", *("x" * 190 + f"{i:010d}" for i in range(50))]
    repeated = {physical_key(key, pass_index) for key in keys for pass_index in range(5)}
    assert len(repeated) == 5 * len(keys)
    assert max(map(len, repeated)) <= 200
    assert physical_key("a/b", 4) == "a/b-r4"


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
    "a size": (small_plan(images=ImagePolicy(short_side=256)), "`resize` is not given there, 256 here"),
    "a switch": (small_plan(images=ImagePolicy(apply_exif=True)), "`apply_exif` is not given there, given here"),
    "restart markers": (small_plan(images=ImagePolicy(jpeg="restart")), "`jpeg` is untouched there, restart here"),
    "another number of images": (small_plan((2, 3)), "val has 3 images there, 5 here"),
    "another number of shards": (small_plan((1, 1, 1)), "val has 2 shards there, 3 here"),
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
    "another number of classes": (replace(small_plan(), classes=("n01440764",)), "there are 2 classes there, 1 here"),
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


DATA = bytes(range(200)) * 3


@pytest.fixture
def digest():
    written = HashingWriter()
    written.write(DATA)
    return digest_of(written)


def test_a_file_is_compared_with_its_digest(storage, digest):
    with pytest.raises(FileNotFoundError):
        fault_of(storage, "x", digest)
    storage.create("x", DATA)
    assert fault_of(storage, "x", digest) is None
    assert FileDigest(**digest.document()) == digest


def test_the_fault_says_what_was_found_and_expected(storage, digest):
    storage.create("short", DATA[:-1])
    assert fault_of(storage, "short", digest) == "599 bytes, expected 600"
    storage.create("flipped", flipped(DATA, 4799))
    assert fault_of(storage, "flipped", digest) == "CRC32C 064952f1, expected 84bf6989"
