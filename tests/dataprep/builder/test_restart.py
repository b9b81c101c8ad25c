"""JPEGs with restart markers: the same pixels in every decoder, the same segments, and odd files left alone."""

import io
import struct
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dataprep.builder import images
from dataprep.builder.driver import run_build
from dataprep.builder.images import RESTART_LIBRARY, ImagePolicy, library_version, with_restarts
from dataprep.builder.plan import BuildOptions, BuildRequest
from dataprep.builder.recipe import build_shard
from dataprep.commands.progress import BuildProgress
from dataprep.dataset.manifest import read_manifest
from dataprep.errors import UsageError
from dataprep.formats import _restart
from dataprep.storage import open_storage
from tests.support.jpeg_forms import by_pillow, encoded, picture
from tests.support.jpeg_parts import ADOBE, RESTART_INTERVAL, many_scans, segments, without
from tests.support.on_use import on_use

tf = on_use("tensorflow")
BASELINE, PROGRESSIVE, APP0, APP1, APP2, COMMENT = 0xC0, 0xC2, 0xE0, 0xE1, 0xE2, 0xFE


def by_all(data: bytes) -> list[np.ndarray]:
    """The pixels by Pillow's libjpeg and by simplejpeg's, in colours and at an eighth of the size."""
    image = Image.open(io.BytesIO(data))
    small = Image.open(io.BytesIO(data))
    small.draft("RGB", (1, 1))
    return [np.asarray(image), np.asarray(small), simplejpeg.decode_jpeg(data, strict=True)]


def markers_of(data: bytes) -> list[int]:
    return [marker for marker, _ in segments(data)]


def restarts_in(data: bytes) -> list[int]:
    """The numbers of the restart markers of the only scan."""
    [scan] = [part for marker, part in segments(data) if marker == 0xDA]
    return [scan[at + 1] - 0xD0 for at in range(len(scan) - 1) if scan[at] == 0xFF and 0xD0 <= scan[at + 1] <= 0xD7]


def inserted(data: bytes, marker: int, content: bytes) -> bytes:
    """The file with a segment behind its start."""
    return data[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content + data[2:]


def photo(**options: object) -> bytes:
    return by_pillow(picture(np.random.default_rng(1), 90, 120), **options)


@pytest.mark.parametrize("seed", range(12))
def test_every_decoder_gets_the_same_pixels(seed):
    rng = np.random.default_rng(seed)
    height, width = (int(side) for side in rng.integers(1, 150, 2))
    for kind, data in encoded(rng, height, width):
        again = _restart.with_restarts(data, int(rng.integers(1, 600)))
        assert again != data
        for expected, found in zip(by_all(data), by_all(again), strict=True):
            assert np.array_equal(expected, found), kind
        assert restarts_in(again) == [number % 8 for number in range(len(restarts_in(again)))]
        assert PROGRESSIVE not in markers_of(again) and markers_of(again).count(RESTART_INTERVAL) == 1


def test_tensorflow_gets_the_same_pixels():
    rng = np.random.default_rng(20)
    for side in (33, 64):
        for kind, data in encoded(rng, side, 2 * side + 1):
            for method in ("INTEGER_FAST", "INTEGER_ACCURATE"):
                expected, found = (
                    tf.io.decode_jpeg(each, channels=3, dct_method=method).numpy()
                    for each in (data, with_restarts(data))
                )
                assert np.array_equal(expected, found), (kind, method)


def test_intervals_have_about_as_many_bytes_as_asked_for():
    data = by_pillow(picture(np.random.default_rng(2), 300, 400), quality=95)
    sizes = {asked: len(restarts_in(_restart.with_restarts(data, asked))) for asked in (1, 300, 600, 10**6)}
    assert sizes[1] == 25 * 19 - 1  # one in every MCU of 16 x 16 pixels
    assert sizes[10**6] == 18  # an interval is not longer than a row
    assert 0.8 < sizes[300] * 300 / len(data) < 1.2
    assert 0.8 < sizes[600] * 600 / len(data) < 1.2


def test_segments_stay_as_they_are_and_further_images_go():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = photo(exif=exif, icc_profile=bytes(range(256)) * 300, comment=b"a comment", dpi=(72, 71))
    data = inserted(data, ADOBE, b"Adobe\0d\0\0\0\0\x01")
    again = with_restarts(inserted(data, APP2, b"MPF\0" + bytes(60)) + photo())
    kept = [(marker, part) for marker, part in segments(data) if marker >= APP0]
    assert {marker for marker, _ in kept} == {ADOBE, APP0, APP1, APP2, COMMENT}
    assert [(marker, part) for marker, part in segments(again) if marker >= APP0] == kept
    opened = Image.open(io.BytesIO(again))
    assert opened.format == "JPEG" and opened.getexif()[0x0112] == 6
    assert len(opened.info["icc_profile"]) == 256 * 300


@pytest.mark.parametrize("is_named", [True, False])
def test_no_segment_about_colours_is_added(is_named):
    """Without these, decoders guess from the components' numbers, each in its own way."""
    data = without(photo(), APP0)
    if not is_named:
        at = data.index(b"\xff\xc0") + 10
        numbers = bytearray(data)
        for place, number in zip((at, at + 3, at + 6), b"RGB", strict=True):
            numbers[place] = number
        scan = data.index(b"\xff\xda") + 5
        for place, number in zip((scan, scan + 2, scan + 4), b"RGB", strict=True):
            numbers[place] = number
        data = bytes(numbers)
    again = with_restarts(data)
    assert again != data
    assert not {APP0, ADOBE} & set(markers_of(again))
    assert np.array_equal(by_all(data)[0], by_all(again)[0])


def without_the_last_scan(data: bytes) -> bytes:
    return data[: data.rindex(b"\xff\xda")] + b"\xff\xd9"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(photo()[:-2], id="without its end"),
        pytest.param(photo()[:2000], id="truncated"),
        pytest.param(photo()[:-2] + bytes(30) + b"\xff\xd9", id="extraneous bytes, a warning"),
        pytest.param(without_the_last_scan(photo(progressive=True)), id="a progressive file without its last scan"),
        pytest.param(many_scans(600, 64), id="600 scans"),
        pytest.param(b"", id="empty"),
        pytest.param(b"no image at all", id="no image"),
        pytest.param(photo().replace(b"\xff\xc0", b"\xff\xc9"), id="arithmetic codes"),
        pytest.param(photo().replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc1\x00\x11\x0c"), id="12 bits a sample"),
    ],
)
def test_what_decoders_may_disagree_about_keeps_its_bytes(data):
    assert with_restarts(data) is data


def test_a_decoder_smooths_what_a_progressive_file_leaves_out():
    """The reason why such a file keeps its bytes: as baseline it would be decoded without smoothing."""
    first = photo(progressive=True, quality=40)
    while first.count(b"\xff\xda") > 1:
        first = without_the_last_scan(first)
    assert with_restarts(first) is first
    shown = Image.open(io.BytesIO(first)).convert("L")
    blocks = np.asarray(shown)[:88].reshape(11, 8, 15, 8).astype(int)
    assert (blocks.max((1, 3)) - blocks.min((1, 3))).max() > 8  # a block of which only the mean is known would be flat


def test_damaged_files_keep_their_bytes_or_their_pixels():
    rng = np.random.default_rng(3)
    originals = [data for _, data in encoded(rng, 64, 80)]
    kept = 0
    for _ in range(1500):
        data = bytearray(originals[rng.integers(len(originals))])
        most = len(data) if rng.integers(2) else 650
        for at in rng.integers(2, min(most, len(data)), rng.integers(1, 4)):
            data[at] = rng.integers(256)
        again = with_restarts(bytes(data))
        kept += again == data
        if again != data:
            try:
                expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
            except OSError:
                continue
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(again)).convert("RGB")), expected)
    assert 300 < kept < 1400


def test_bytes_are_the_same_in_every_thread():
    rng = np.random.default_rng(4)
    files = [data for _, data in encoded(rng, 200, 300)] * 4
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(with_restarts, files)) == [with_restarts(data) for data in files]


def test_a_build_records_restarts_and_keeps_all_else(originals, tmp_path):
    found = {}
    for jpeg in ("untouched", "restart"):
        options = BuildOptions(
            dataset="imagenet",
            format="webdataset",
            splits=("val",),
            num_shards=1,
            images=ImagePolicy(jpeg=jpeg),
            allow_partial=True,
        )
        request = BuildRequest(
            options=options,
            source_url=str(originals["imagenet"]),
            output_url=str(tmp_path / jpeg),
            max_reject_ratio=1.0,
        )
        run_build(request, lambda job, indexes: map(partial(build_shard, job), indexes), BuildProgress(quiet=True))
        found[jpeg] = read_manifest(open_storage(str(tmp_path / jpeg))), members(tmp_path / jpeg)
    (plain, images), (manifest, again) = found.values()
    assert "jpeg" not in plain.options["images"] and RESTART_LIBRARY not in plain.codecs
    assert manifest.options["images"]["jpeg"] == "restart"
    assert manifest.codecs == {**plain.codecs, RESTART_LIBRARY: library_version()}
    assert plain.splits[0].rejected == manifest.splits[0].rejected
    assert images.keys() == again.keys()
    for name, data in images.items():
        if name.endswith(".jpg"):
            assert restarts_in(again[name])
            assert all(map(np.array_equal, by_all(data), by_all(again[name])))
        else:
            assert again[name] == data


def members(folder: Path) -> dict[str, bytes]:
    [path] = folder.glob("val/*.tar")
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_without_the_extension_the_option_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "dataprep.formats._restart", None)
    monkeypatch.delattr("dataprep.formats._restart", raising=False)
    images.library_version.cache_clear()
    with pytest.raises(UsageError, match=r"^`jpeg` restart: dataprep\.formats\._restart was not built; "):
        library_version()
    images.library_version.cache_clear()
