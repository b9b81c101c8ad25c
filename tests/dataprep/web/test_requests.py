"""How a request ends: one status of a documented word, and failures that can be told again."""

import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep import __version__
from dataprep.errors import UsageError
from dataprep.web.requests import Failed, Limits, Status
from tests.support.samples import examples


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


CONTACT = "mailto:me@example.org"


def test_the_user_agent_has_a_name_and_a_contact():
    assert Limits(contact=CONTACT).user_agent == f"dataprep/{__version__} (+{CONTACT})"
    assert Limits(contact="https://example.org/bot", agent="my-bot").user_agent.startswith("my-bot/")


@pytest.mark.parametrize(
    "contact", ["", "me", "me@example.org", "ftp://example.org", "https://", "mailto:me\r\nX: y", "https://a b"]
)
def test_limits_without_a_contact_are_refused(contact: str):
    with pytest.raises(UsageError, match=r"give an https:// page or mailto:name@example\.org"):
        Limits(contact=contact)


@pytest.mark.parametrize("agent", ["", "my bot", "bot/2", "bot\r\nX: y", "Bötchen"])
def test_an_agent_name_that_robots_txt_cannot_address_is_refused(agent: str):
    with pytest.raises(UsageError, match="other characters than letters, - and _"):
        Limits(contact=CONTACT, agent=agent)


@pytest.mark.parametrize(
    "name", ["in_flight", "body_bytes", "connect_s", "read_s", "row_s", "host_connections", "host_per_s"]
)
@pytest.mark.parametrize("value", [0, -1])
def test_limits_of_0_or_less_are_refused(name: str, value: int):
    with pytest.raises(UsageError, match=f"{name} is {value}; it must be positive"):
        Limits(contact=CONTACT, **{name: value})


def test_redirects_and_retries_may_be_0():
    assert Limits(contact=CONTACT, redirects=0, retries=0, verify_tls=False).redirects == 0


def test_a_memory_limit_below_one_body_is_refused():
    with pytest.raises(UsageError, match=r"memory_bytes is 99, less than one body of 100; raise it"):
        Limits(contact=CONTACT, memory_bytes=99, body_bytes=100)


@examples
@given(st.integers(1, 64), st.integers(1, 100), st.floats(0.1, 100), st.integers(1, 10_000))
def test_workers_together_keep_the_limits_of_one(workers: int, connections: int, per_s: float, memory_bytes: int):
    whole = Limits(
        contact=CONTACT, host_connections=connections, host_per_s=per_s, memory_bytes=memory_bytes, body_bytes=1
    )
    part = whole.divided(workers)
    assert part.host_per_s * workers == pytest.approx(per_s)
    assert part.host_connections * workers <= max(connections, workers)
    assert part.memory_bytes * workers <= max(memory_bytes, workers * whole.body_bytes)
    assert (part.in_flight, part.row_s, part.contact) == (whole.in_flight, whole.row_s, whole.contact)
