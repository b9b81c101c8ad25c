"""Names and words of img2dataset."""

import pytest

from dataprep.errors import FormatError
from dataprep.formats import img2dataset
from dataprep.formats.tfds import json_bytes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("HTTP Error 404: Not Found", "http 404"),
        ("HTTP Error 408: Request timed out", "http 408"),
        ("HTTP Error 302: The HTTP server returned a redirect error that would lead to an infinite loop.", "redirect"),
        ("<urlopen error [Errno -2] Name or service not known>", "dns"),
        ("<urlopen error [Errno -3] Temporary failure in name resolution>", "dns"),
        ("<urlopen error timed out>", "timeout"),
        ("The read operation timed out", "timeout"),
        ("timed out", "timeout"),
        ("<urlopen error _ssl.c:1112: The handshake operation timed out>", "timeout"),
        ("<urlopen error [Errno 111] Connection refused>", "connect"),
        ("[Errno 104] Connection reset by peer", "connect"),
        ("Remote end closed connection without response", "connect"),
        ("<urlopen error [Errno 113] No route to host>", "connect"),
        ("IncompleteRead(61024 bytes read, 1000 more expected)", "incomplete"),
        ("<urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: a.b (_ssl.c:1129)>", "tls"),
        ("Use of image disallowed by X-Robots-Tag directive", "opt out"),
        ("<urlopen error unknown url type: httpss>", "bad url"),
        ("'ascii' codec can't encode character '\\xe9' in position 9", "bad url"),
        ("Image decoding error", "undecodable"),
        ("image too small", "image too small"),
        ("hash mismatch", "hash mismatch"),
        ("OpenCV(4.5.5) /io/opencv/modules/imgproc/src/resize.cpp:4052: error: (-215)", "other"),
    ],
)
def test_exception_texts_become_fixed_phrases(text, reason):
    assert img2dataset.reason_of(text) == reason
    assert img2dataset.reason_of(reason) == reason


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("00012.tar", ("", "00012")),
        ("cc3m/train/00012.tfrecord", ("cc3m/train/", "00012")),
        ("00012.parquet", None),
        ("a12.tar", None),
    ],
)
def test_shards_are_identified_by_folder_and_number(name, parts):
    found = img2dataset.SHARD.fullmatch(name)
    assert (found.groups() if found else None) == parts


def test_sidecars_have_the_name_of_their_shard():
    assert img2dataset.sidecars_of("train/00012.tar") == ("train/00012.parquet", "train/00012_stats.json")


def test_missing_numbers_are_shards_of_no_samples():
    template, lengths = img2dataset.numbered([("a{b}/000000.tfrecord", 3), ("a{b}/000002.tfrecord", 4)])
    assert lengths == [3, 0, 4]
    assert template == "a{{b}}/0{SHARD_INDEX}.{FILEFORMAT}"
    assert img2dataset.escaped("{x}") == "{{x}}"


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["0.tfrecord"], "expected numbers of one width, 5 digits or more"),
        (["00000.tfrecord", "000001.tfrecord"], "expected numbers of one width"),
        (["a/00000.tfrecord", "b/00001.tfrecord"], "b/00001.tfrecord, expected numbers of one width"),
        (["00000.tar"], "00000.tar, expected names such as 00000.tfrecord"),
        (["train.tfrecord"], "train.tfrecord, expected names such as"),
        ([f"{img2dataset.MAX_SHARDS}.tfrecord"], "shard number 1,000,000, expected less than 1,000,000"),
    ],
)
def test_names_that_tfds_cannot_make_are_refused(names, problem):
    with pytest.raises(FormatError, match=problem):
        img2dataset.numbered([(name, 1) for name in names])


def test_only_descriptions_of_dataprep_are_recognised_as_its_own():
    assert img2dataset.is_ours(json_bytes({"description": img2dataset.DESCRIPTION}))
    for data in (b"", b"[]", b"{}", b'{"description": "x"}', b"[" * 100_000):
        assert not img2dataset.is_ours(data)
