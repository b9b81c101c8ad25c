"""What disks and buckets say in the same words: what was got, what was expected, and what to do next."""

from __future__ import annotations

import errno
from pathlib import Path

from dataprep.storage import messages


def test_a_missing_object_is_named_as_the_system_names_a_file():
    error = messages.missing("gs://bucket/x")
    assert (error.errno, error.filename) == (errno.ENOENT, "gs://bucket/x")
    assert "No such file" in str(error)


def test_a_conflict_names_both_objects():
    assert messages.conflict("/data/x", (1_000, "AAAAAQ=="), (2_000_000, "4waSgw==")) == (
        "/data/x: another object exists there already, 2,000,000 bytes with CRC32C e3069283, where 1,000 bytes with "
        "CRC32C 00000001 belong; move it away and run the same command again, or choose another output"
    )


def test_a_range_past_the_end_says_where_the_object_ends():
    said = messages.ends_before("/x", 1_000, 24, 1_010)
    assert said.startswith("/x: bytes 1,000 to 1,024 were requested, but it ends at 1,010; ")
    assert messages.bad_range("/x", -1, 5) == "/x: a range must not be negative, got 5 bytes from -1"


def test_the_message_about_a_removed_file_says_to_run_the_same_command_again():
    for said in (messages.spool_gone(Path("/x")), messages.build_gone("/x"), messages.unsettled("/x")):
        assert said.startswith("/x: ")
        assert said.endswith("run the same command again: it goes on where it stopped")
