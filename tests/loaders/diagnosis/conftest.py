"""The rates of a machine: given ones, or those that are measured here."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.given_rates import GivenRates, give_rates


@pytest.fixture(params=["given", pytest.param("watched", marks=pytest.mark.long)])
def rates(request, monkeypatch) -> Callable[..., bool]:
    """Function that gives the rates of all that is measured, unless this machine is watched; whether it gave them."""

    def give(**given) -> bool:
        if request.param == "given":
            give_rates(monkeypatch, GivenRates(**given))
        return request.param == "given"

    return give


@pytest.fixture
def set_latency(gcs) -> Iterator[Callable[[float], None]]:
    """Function that sets the milliseconds of every answer of the buckets, until the test ends."""
    yield gcs.set_latency
    gcs.set_latency(0)
