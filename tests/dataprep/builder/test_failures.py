import errno
import pickle

import pytest

from dataprep.builder.pool import backoff_s, failure_of, shards_set_aside
from dataprep.errors import AccessError, ConflictError, FullError, ImageError, StorageError, UsageError


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (StorageError("the disk is tired"), True),
        (OSError("the disk is tired"), True),
        (FullError("no space"), False),
        (OSError(errno.ENOSPC, "no space"), False),
        (OSError(errno.EDQUOT, "no quota"), False),
        (AccessError("no permission"), False),
        (ConflictError("another writer"), False),
        (ImageError("a bad image"), False),
        (UsageError("other codecs"), False),
        (KeyError("key"), False),
    ],
)
def test_errors_of_storage_and_operating_system_are_retryable(error, may_pass):
    with pytest.raises(type(error)) as raised:
        raise error
    assert failure_of(3, raised.value).may_pass is may_pass


def test_an_expected_error_is_passed_on_as_it_is():
    error = UsageError("other codecs")
    assert failure_of(3, error).error is error


def test_an_unexpected_error_is_named_with_its_location():
    try:
        {}["key"]
    except KeyError as error:
        failure = pickle.loads(pickle.dumps(failure_of(3, error)))
    assert str(failure.error).startswith("shard 3: unexpected KeyError: 'key' (test_an_unexpected_error_is_named")


def test_the_time_before_the_next_attempt_doubles():
    assert [backoff_s(attempts) for attempts in (1, 2, 3)] == [0.5, 1.0, 2.0]


def test_shards_that_were_set_aside_are_named_in_their_order():
    assert str(shards_set_aside({7: "hung", 3: "killed its worker 3 times"})) == (
        "2 of the shards could not be built: shard 3: killed its worker 3 times; shard 7: hung. "
        "All others are done; run the same command again to try these"
    )
