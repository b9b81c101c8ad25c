"""Options that all builds of pictures share."""

from __future__ import annotations

from dataclasses import replace

import click

from dataprep.builder.images import ImagePolicy
from dataprep.commands.build import command
from dataprep.commands.build_options import image_policy, plan_lines
from dataprep.dataset.features import Feature
from tests.support.plans import small_plan

SHARED = {
    "--format",
    "--split",
    "--shard-bytes",
    "--num-shards",
    "--seed",
    "--resize",
    "--quality",
    "--check",
    "--jpeg",
}


def test_every_build_of_pictures_has_them():
    context = click.Context(command)
    for name in ("coco-dup5", "imagenet", "imagenet-21k", "imagenet-fake", "folder"):
        options = {option for parameter in command.get_command(context, name).params for option in parameter.opts}
        assert options >= SHARED | {"--on-bad", "--apply-exif", "--max-reject-ratio"}


def test_the_policy_takes_its_options_and_leaves_the_others():
    options = {"check": "none", "on_bad": "reject", "apply_exif": False, "short_side": None, "quality": 90, "seed": 3}
    options["jpeg"] = "restart"
    assert image_policy(options) == ImagePolicy(check="none", on_bad="reject", quality=90, jpeg="restart")
    assert options == {"seed": 3}


def test_a_plan_is_described_by_split():
    (line,) = plan_lines(small_plan())
    assert line == "  val: 3 samples in 2 shards, about 900 B; an epoch makes 1 pass, 1 stored"
    annotated = replace(small_plan(), features={"box": Feature("float64", (None, 4)), "caption": Feature("text")})
    assert list(plan_lines(annotated))[1:] == ["  features: box (lists of list of 4 float64), caption (text)"]


def test_a_plan_without_classes_says_so():
    assert list(plan_lines(replace(small_plan(), classes=())))[1:] == ["  labels: none"]
