"""What a build is asked for stays as it was asked, and whoever watches is told all of it."""

from dataclasses import FrozenInstanceError

import pytest

from dataprep.builder.plan import BuildRequest, Progress
from dataprep.commands.progress import BuildProgress
from tests.support.plans import small_plan


def test_request_cannot_be_changed():
    asked = BuildRequest(options=small_plan().options, source_url="a", output_url="b", max_reject_ratio=0.0)
    assert not asked.overwrite
    with pytest.raises(FrozenInstanceError):
        asked.output_url = "c"


def test_command_line_progress_implements_every_method_of_progress():
    told = {name for name in dir(Progress) if not name.startswith("_")}
    assert told == {"enumerating", "reading", "log", "planned", "shard_done", "assembling"}
    assert told <= set(dir(BuildProgress))
