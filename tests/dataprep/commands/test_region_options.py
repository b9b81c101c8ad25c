"""Places are told by --zone, --tpu or a Beam runner's own options."""

import pytest

from dataprep.commands.region_options import named_place, place_of_workers, runs_here
from dataprep.errors import UsageError


def test_a_zone_or_region_is_checked_and_lower_case():
    assert named_place("US-Central1-A", None) == "us-central1-a"
    assert named_place(None, None) is None
    with pytest.raises(UsageError, match="'nowhere' is no zone or region"):
        named_place("nowhere", None)


def test_a_region_that_is_not_known_is_used_with_a_note(capsys):
    assert named_place("us-cental2-b", None) == "us-cental2-b"
    assert capsys.readouterr().err == "note: us-cental2 is no region that dataprep knows; did you mean us-central2?\n"
    assert place_of_workers(("--region=us-eastt1",)) == "us-eastt1"
    assert "did you mean us-east1?" in capsys.readouterr().err
    assert named_place("us-central2-b", None) == "us-central2-b"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ((), None),
        (("--project=p",), None),
        (("--region=europe-west4", "--worker_zone=europe-west4-b"), "europe-west4-b"),
        (("--region=us-east1",), "us-east1"),
        (("--region", "us-east1", "--project", "p"), "us-east1"),
        (("--region", "--project=p"), None),
    ],
)
def test_the_most_exact_option_of_a_beam_runner_gives_its_workers_place(options, place):
    assert place_of_workers(options) == place


def test_local_runners_work_on_this_machine():
    assert [runs_here(runner) for runner in ("local", "FnApiRunner", "DataflowRunner")] == [True, True, False]
