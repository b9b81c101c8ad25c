"""How a request ends: one status of a documented word, and failures that can be told again."""

from __future__ import annotations

import pickle
import traceback

import pytest

from dataprep.web.outcomes import Failed, Outcome, Status


def test_each_status_equals_its_documented_word():
    """Tables and manifests hold the words."""
    assert Status.SUCCESS == "success"
    assert all(each.value == each.name.lower() for each in Status)
    assert pickle.loads(pickle.dumps(Status.DNS)) is Status.DNS


def test_a_cached_failure_is_raised_again_without_old_tracebacks():
    first = Failed(Status.HTTP, "the server said 404", 404)
    for _ in range(3):
        with pytest.raises(Failed):
            raise first
    again = first.again("robots.txt: ")
    assert (again.status, again.reason, again.http_code) == (Status.HTTP, "robots.txt: the server said 404", 404)
    assert traceback.extract_tb(again.__traceback__) == []
    assert first.again().reason == first.reason


def test_an_outcome_without_an_image_has_neither_body_nor_address():
    outcome = Outcome(7, Status.DNS, "no such name")
    assert (outcome.body, outcome.final_url, outcome.http_code) == (None, None, None)
    assert pickle.loads(pickle.dumps(outcome)) == outcome
