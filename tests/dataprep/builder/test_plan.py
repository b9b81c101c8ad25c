from dataclasses import replace

import pytest

from dataprep.builder.images import RESTART_LIBRARY, ImagePolicy, library_version
from dataprep.builder.plan import (
    BuildOptions,
    Plan,
    PlannedSplit,
    physical_key,
    plan_from_document,
    planned_codecs,
    refuse_other_codecs,
)
from dataprep.errors import UsageError

OPTIONS = BuildOptions(dataset="coco-dup5", format="webdataset", splits=("train",))


def plan_of(**changes):
    split = PlannedSplit(
        name="train",
        shard_samples=(3, 2),
        repeat_count=5,
        repeat_stored=1,
        sources=({"name": "train2017.zip", "bytes": 9},),
        enumeration_sha256="ab",
        source_bytes=8,
    )
    return Plan(options=replace(OPTIONS, **changes), codecs={"pillow": "1"}, classes=(), splits=(split,))


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
        ({"images": ImagePolicy(check="none", jpeg="restart")}, "`check` none reads no image, so `jpeg` restart needs"),
    ],
)
def test_bad_options_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        replace(OPTIONS, **change)


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
        rf"^this worker has libjpeg-turbo {library_version()}, the plan was made with libjpeg-turbo 1\.0: "
        "other versions write other bytes; install tpu-dataprep with the same one for every worker$"
    )
    with pytest.raises(UsageError, match=message):
        refuse_other_codecs({**planned, RESTART_LIBRARY: "1.0"})


def test_keys_of_repeats_stay_unique_and_short():
    keys = ["a/b", *("x" * 190 + f"{i:010d}" for i in range(50))]
    repeated = {physical_key(key, pass_index) for key in keys for pass_index in range(5)}
    assert len(repeated) == 5 * len(keys)
    assert max(map(len, repeated)) <= 200
    assert physical_key("a/b", 4) == "a/b-r4"
