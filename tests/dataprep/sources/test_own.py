"""What a user says of their own data."""

import pytest

from dataprep.errors import UsageError
from dataprep.sources import BUILT, OWN, configured, own_name_fault
from dataprep.sources.base import UNSTATED, OwnData, name_from


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/home/me/My Pictures/", "my-pictures"),
        ("gs://bucket/a/Pets_2024", "pets-2024"),
        ("x/cats.zip", "cats"),
        ("2024", "data-2024"),
        ("/", "data"),
        ("/päts/größe", "gr-e"),
        ("x" * 300, "x" * 60),
    ],
)
def test_names_are_made_of_the_source(url, name):
    assert name_from(url) == name
    assert own_name_fault(name) == ""


@pytest.mark.parametrize("name", [*BUILT, "Cats", "a_b", "-a", "a-", "1a", "", "x" * 65, "a/b", "..", "a\n"])
def test_names_that_are_refused(name):
    assert own_name_fault(name)


def test_datasets_of_the_users_own_are_not_published():
    for name, dataset in OWN.items():
        assert not dataset.is_published
        assert (dataset.name, dataset.licence, dataset.origin) == (name, UNSTATED, UNSTATED)
        own = OwnData(name="pets", licence="CC0-1.0", origin="my garden")
        described = configured(name, own=own)
        assert (described.name, described.licence, described.origin) == ("pets", "CC0-1.0", "my garden")


@pytest.mark.parametrize("options", [{"val_fraction": 1.0}, {"val_fraction": -0.1}, {"group_by": "patient"}])
def test_options_that_contradict_themselves(options):
    with pytest.raises(UsageError):
        OwnData(name="pets", **options)
