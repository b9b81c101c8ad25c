"""A body is whole and within its limit, or it is none."""

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.web.body import Body
from dataprep.web.outcomes import Failed, Status
from tests.support.web_pages import picture

PACKED = {"gzip": gzip.compress, "deflate": zlib.compress, "": bytes, "identity": bytes, "X-GZIP ": gzip.compress}


def read(body: bytes, pieces: int, limit_bytes: int, encoding: str = "", *, image: bool = False) -> bytes:
    taken = Body(limit_bytes, image=image)
    taken.decode_from(encoding)
    for at in range(0, len(body), pieces):
        for part in taken.parts(body[at : at + pieces]):
            taken.feed(part)
    return taken.whole()


@settings(deadline=None)
@given(st.binary(max_size=3_000), st.integers(1, 500), st.sampled_from(sorted(PACKED)))
def test_a_body_in_any_pieces_is_the_whole_body(body, pieces, encoding):
    assert read(PACKED[encoding](body), pieces, 4_000, encoding) == body


@settings(deadline=None)
@given(st.integers(0, 2_000), st.integers(1, 2_000), st.integers(1, 300), st.sampled_from(["", "gzip", "deflate"]))
def test_a_body_is_too_large_from_one_byte_over_the_limit_on(num_bytes, limit_bytes, pieces, encoding):
    packed = PACKED[encoding](bytes(num_bytes))
    if max(num_bytes, len(packed)) <= limit_bytes:
        assert len(read(packed, pieces, limit_bytes, encoding)) == num_bytes
        return
    with pytest.raises(Failed) as failed:
        read(packed, pieces, limit_bytes, encoding)
    assert failed.value.status is Status.TOO_LARGE


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (gzip.compress(picture())[:-1], Status.INCOMPLETE),
        (gzip.compress(picture()) + b"more", Status.ENCODING),
        (picture(), Status.ENCODING),
        (b"", Status.INCOMPLETE),
        (gzip.compress(b"<html>"), Status.NOT_IMAGE),
    ],
    ids=[
        "cut",
        "followed",
        "plain",
        "empty",
        "html",
    ],  # gzip's head has the time: no name of a test that two processes share
)
def test_a_body_that_does_not_decompress_whole_is_refused(body, status):
    with pytest.raises(Failed) as failed:
        read(body, 1_000, 1 << 20, "gzip", image=True)
    assert failed.value.status is status


@pytest.mark.parametrize("num_bytes", [1, 65_535, 65_536, 65_537, 131_072, 1 << 20])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_shrank_a_thousandfold_is_whole_and_comes_in_small_parts(num_bytes, encoding):
    packed = PACKED[encoding](bytes(num_bytes))
    body = Body(max(num_bytes, len(packed)), image=False)
    body.decode_from(encoding)
    parts = []
    for at in range(0, len(packed), 7):
        for part in body.parts(packed[at : at + 7]):
            body.feed(part)
            parts.append(len(part))
    assert body.whole() == bytes(num_bytes)
    assert max(parts) <= 65_536


def test_a_body_in_single_bytes_takes_no_more_memory_than_in_one_piece():
    tracemalloc.start()
    try:
        body = Body(1 << 20, image=False)
        for byte in range(1 << 17):
            body.feed(b"%c%c" % (byte % 256, byte // 256 % 256) if byte % 2 else b"")
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 1.5 * (1 << 17)


@pytest.mark.parametrize("kind", ["jpeg", "png", "animated", "exif", "corrupt"])
def test_images_are_recognised_by_their_first_bytes_in_any_pieces(kind):
    assert read(picture(kind), 5, 1 << 20, image=True) == picture(kind)


def test_a_body_that_is_no_image_is_refused_from_its_first_bytes():
    body = Body(1 << 20)
    with pytest.raises(Failed, match="begins with b'<html><body>'"):
        body.feed(b"<html><body>")
