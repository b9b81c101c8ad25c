"""Images are kept, repaired, resized, rejected or given restart markers, by their content alone."""

import io
import struct
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import skimage
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dataprep.builder import images
from dataprep.builder.images import (
    RESTART_LIBRARY,
    CheckedImage,
    ImagePolicy,
    check_image,
    library_version,
    with_restarts,
)
from dataprep.dataset.records import Event
from dataprep.errors import ImageError, UsageError
from dataprep.formats import _restart
from tests.support.build_here import request, whole
from tests.support.jpeg_forms import by_pillow, encoded, picture
from tests.support.jpeg_parts import ADOBE, RESTART_INTERVAL, many_scans, segments, without
from tests.support.on_use import on_use

PHOTO = Image.open(Path(skimage.__file__).parent / "data" / "astronaut.png").convert("RGB").resize((120, 90))


def encode(image=PHOTO, kind="JPEG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def with_orientation(value, **options):
    exif = Image.Exif()
    exif[0x0112] = value
    return encode(exif=exif, **options)


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


JPEG = encode(quality=92)
KEPT = {
    "baseline": JPEG,
    "progressive": encode(progressive=True),
    "grey": encode(PHOTO.convert("L")),
    "4:4:4": encode(subsampling=0),
    "rgb": encode(keep_rgb=True),
    "trailing bytes": JPEG + b"what follows the end",
    "extraneous bytes before the end (a warning)": JPEG[:-2] + b"\x00\x00" + JPEG[-2:],
    "one pixel": encode(PHOTO.resize((1, 1))),
    "arithmetic-free restart markers": encode(restart_marker_rows=1),
}
REPAIRED = {
    "png": encode(kind="PNG"),
    "gif": encode(PHOTO.convert("P"), kind="GIF"),
    "bmp": encode(kind="BMP"),
    "webp": encode(kind="WEBP", lossless=True),
    "cmyk": encode(PHOTO.convert("CMYK")),
}


def big_jpeg_header(height, width):
    start = JPEG.index(b"\xff\xc0")
    return JPEG[: start + 5] + struct.pack(">HH", height, width) + JPEG[start + 9 :]


def png_of_rows(rows):
    """A sound PNG of PHOTO, but for its data: they are of so many rows."""
    data, part = encode(kind="PNG"), encode(PHOTO.crop((0, 0, PHOTO.width, rows)), kind="PNG")
    return data[:33] + part[33:]


REJECTED = {
    "missing": [None],
    "empty": [b""],
    "truncated": [
        JPEG[:-2],
        JPEG[: len(JPEG) // 2],
        *(JPEG[: len(JPEG) * tenth // 10].ljust(len(JPEG), b"\0") for tenth in range(1, 10)),
        encode(progressive=True)[:-900].ljust(9999, b"\0"),
        encode(kind="PNG")[:-4000],
        encode(kind="PNG")[:-12],
        encode(kind="BMP")[:-500],
        png_of_rows(50),
    ],
    "undecodable": [b"\xff\xd8\xff", b"no image at all", JPEG[:30], b"\x89PNG\r\n\x1a\n" + b"x" * 99, bytes(1000)],
    "unencodable": [encode(Image.new("RGB", (2, 65_501)), kind="PNG")],
    "too-large": [big_jpeg_header(20_000, 20_000), encode(Image.new("1", (20_000, 6_000)), kind="PNG")],
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("check", ["decode", "header", "none"])
def test_a_valid_jpeg_keeps_its_bytes(name, check):
    data = KEPT[name]
    height, width = Image.open(io.BytesIO(data)).size[::-1] if check != "none" else (0, 0)
    assert check_image("k", data, ImagePolicy(check=check)) == CheckedImage(data, height, width, 1)


@pytest.mark.parametrize("kind", REPAIRED)
def test_other_images_become_rgb_jpeg_of_quality_100(kind):
    data = REPAIRED[kind]
    checked = check_image("k", data, ImagePolicy())
    assert checked.event is not None
    assert (checked.event.kind, checked.event.reason) == ("repaired", kind)
    assert (checked.height, checked.width) == (90, 120)
    assert simplejpeg.decode_jpeg_header(checked.image)[2:] == ("YCbCr", "444")
    assert np.abs(pixels(checked.image) - pixels(data)).mean() < 1
    assert check_image("k", checked.image, ImagePolicy()) == CheckedImage(checked.image, 90, 120, 1)


def test_ycck_is_repaired():
    """Pillow writes CMYK without the Adobe transform; flipping the marker's last byte makes the same file YCCK."""
    adobe = REPAIRED["cmyk"].index(b"Adobe")
    data = REPAIRED["cmyk"][: adobe + 11] + b"\x02" + REPAIRED["cmyk"][adobe + 12 :]
    checked = check_image("k", data, ImagePolicy())
    assert checked.event is not None
    assert checked.event.reason == "ycck"


def test_transparency_lies_over_white():
    image = Image.new("RGBA", (40, 300), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 20, 300))
    found = pixels(check_image("k", encode(image, kind="PNG"), ImagePolicy()).image)
    assert np.abs(found[:, :16] - [0, 0, 255]).max() <= 3
    assert np.abs(found[:, 24:] - [255, 255, 255]).max() <= 3
    palette = image.convert("P")
    palette.info["transparency"] = palette.getpixel((30, 0))
    found = pixels(
        check_image("k", encode(palette, kind="PNG", transparency=palette.getpixel((30, 0))), ImagePolicy()).image
    )
    assert np.abs(found[:, 24:] - 255).max() <= 3


@pytest.mark.parametrize(("reason", "data"), [(reason, data) for reason, many in REJECTED.items() for data in many])
def test_images_that_cannot_be_decoded_are_rejected(reason, data):
    event = check_image("k", data, ImagePolicy())
    assert isinstance(event, Event)
    assert (event.key, event.kind, event.reason) == ("k", "rejected", reason)
    assert "\n" not in event.detail


@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_is_recorded_or_applied(value):
    data = with_orientation(value, quality=95)
    kept = check_image("k", data, ImagePolicy())
    assert (kept.image, kept.orientation, kept.event) == (data, value, None)
    applied = check_image("k", data, ImagePolicy(apply_exif=True))
    if value == 1:
        assert applied == kept
        return
    assert applied.event.reason == "orientation"
    assert applied.orientation == 1
    assert (applied.height, applied.width) == ((120, 90) if value >= 5 else (90, 120))
    again = check_image("k", applied.image, ImagePolicy(apply_exif=True))
    assert again.image == applied.image


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize(("kind", "short_side"), [("JPEG", 45), ("PNG", None), ("WEBP", 45)])
def test_an_image_that_is_written_anew_keeps_its_orientation_for_a_conversion(kind, short_side, value):
    exif = Image.Exif()
    exif[0x0112] = value
    policy = ImagePolicy(short_side=short_side)
    written = check_image("k", encode(kind=kind, exif=exif), policy)
    again = check_image("k", written.image, policy)
    assert (written.orientation, again.orientation, again.image) == (value, value, written.image)
    assert Image.open(io.BytesIO(written.image)).getexif().get(0x0112, 1) == value


def segment(marker, content):
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2) + content


@pytest.mark.parametrize(
    ("before", "value"),
    [
        (b"", 6),
        (segment(0xE2, b"ICC_PROFILE\0" + bytes(60_000)) * 3, 6),
        (segment(0xFE, b"Exif\0\0 in a comment"), 6),
        (b"\xff" * 9, 6),  # fill bytes, which T.81 allows before a marker
        (segment(0xFE, b"") * 2_000, 1),  # past what any camera writes
    ],
)
def test_orientation_is_found_behind_other_segments(before, value):
    data = with_orientation(6)
    data = data[:2] + before + data[2:]
    assert check_image("k", data, ImagePolicy()).orientation == value


def test_the_word_exif_outside_its_segment_is_ignored():
    data = encode()
    data = data[:2] + segment(0xFE, b"Exif\0\0") + data[2:] + b"Exif\0\0"
    assert check_image("k", data, ImagePolicy()).orientation == 1


@pytest.mark.parametrize("reason", REJECTED)
def test_an_image_that_would_be_shrunk_is_rejected_alike(reason):
    for data in REJECTED[reason]:
        assert check_image("k", data, ImagePolicy(short_side=8)) == check_image("k", data, ImagePolicy())


def entry(tag, kind, count, value):
    return struct.pack("<HHI", tag, kind, count) + value.ljust(4, b"\0")


ODD_TAGS = {
    "Software as RATIONAL": (0x131, 5, 1, struct.pack("<I", 38) + struct.pack("<II", 3, 2)),
    "XResolution as ASCII": (0x11A, 2, 3, b"72\0"),
    "ResolutionUnit as ASCII": (0x128, 2, 2, b"2\0"),
    "Make as FLOAT": (0x10F, 11, 1, struct.pack("<f", 1.5)),
}


@pytest.mark.parametrize("name", ODD_TAGS)
def test_pixels_are_turned_whatever_other_tags_the_exif_has(name):
    """The orientation is 6, so the columns become rows."""
    tag, kind, count, value = ODD_TAGS[name]
    rows = sorted([entry(0x112, 3, 1, struct.pack("<H", 6)), entry(tag, kind, count, value[:4])])
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + b"".join(rows) + bytes(4) + value[4:]
    data = JPEG[:2] + segment(0xE1, exif) + JPEG[2:]
    applied = check_image("k", data, ImagePolicy(apply_exif=True))
    assert (applied.height, applied.width, applied.orientation) == (120, 90, 1)
    assert np.abs(pixels(applied.image) - np.rot90(pixels(JPEG), -1)).mean() < 1


def test_a_photo_with_a_film_behind_it_keeps_its_bytes():
    film = np.random.default_rng(1).bytes(10_000) + b"\xff\xda\0\x02" * 600
    assert check_image("k", JPEG + film, ImagePolicy()) == CheckedImage(JPEG + film, 90, 120, 1)


@pytest.mark.parametrize("error", [AttributeError("no attribute"), OSError("broken data stream"), MemoryError()])
def test_whatever_a_codec_raises_rejects_its_image(monkeypatch, error):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr(Image.Image, "resize", fail)
    event = check_image("k", JPEG, ImagePolicy(short_side=8))
    assert (event.kind, event.reason, event.key) == ("rejected", "undecodable", "k")
    assert str(error) in event.detail


def test_a_side_that_no_jpeg_has_is_allowed_if_it_is_shrunk():
    long = encode(Image.new("RGB", (2, 65_501)), kind="PNG")
    assert check_image("k", long, ImagePolicy(short_side=1)).height == 32_750


def test_a_corrupt_exif_block_is_ignored():
    data = with_orientation(6)
    start = data.index(b"Exif\x00\x00") + 6
    data = data[:start] + b"\xff" * 8 + data[start + 8 :]
    assert check_image("k", data, ImagePolicy()) == CheckedImage(data, 90, 120, 1)


def test_resize_shrinks_only_larger_images():
    assert check_image("k", JPEG, ImagePolicy(short_side=90)).image == JPEG
    small = check_image("k", JPEG, ImagePolicy(short_side=45, quality=80))
    assert (small.height, small.width, small.event) == (45, 60, None)
    assert len(check_image("k", JPEG, ImagePolicy(short_side=45, quality=30)).image) < len(small.image)
    from_png = check_image("k", REPAIRED["png"], ImagePolicy(short_side=45))
    assert (from_png.height, from_png.width, from_png.event.reason) == (45, 60, "png")
    assert from_png.image == check_image("k", REPAIRED["png"], ImagePolicy(short_side=45, quality=30)).image


def test_on_bad_rejects_the_image_or_fails():
    event = check_image("k", REPAIRED["png"], ImagePolicy(on_bad="reject"))
    assert (event.kind, event.reason) == ("rejected", "png")
    with pytest.raises(ImageError, match=r"k: PNG \(RGB\) of 120x90 pixels .* \(`on_bad` fail\)"):
        check_image("k", REPAIRED["png"], ImagePolicy(on_bad="fail"))
    with pytest.raises(ImageError, match="k: the file has no bytes"):
        check_image("k", b"", ImagePolicy(on_bad="fail"))


@given(
    st.sampled_from([*KEPT.values(), *REPAIRED.values()]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    st.floats(0, 1),
    st.sampled_from(["decode", "header", "none"]),
)
def test_hostile_bytes_give_an_image_or_a_reason(data, flips, cut, check):
    damaged = bytearray(data[: int(len(data) * cut) or len(data)])
    for place, value in flips:
        damaged[int(place * len(damaged))] = value
    result = check_image("k", bytes(damaged), ImagePolicy(check=check))
    if isinstance(result, Event):
        assert result.reason in REJECTED
    else:
        assert result.image.startswith(b"\xff\xd8\xff")


@pytest.mark.parametrize("components", ["YCbCr", "CMYK"])
def test_progressive_image_of_too_many_scans_is_rejected_before_it_is_rewritten(components):
    """Also where nothing but the header is checked, and where it would be repaired."""
    data = many_scans(900, 2_000)
    if components == "CMYK":
        frame = data.index(b"\xff\xc2")
        length = 2 + int.from_bytes(data[frame + 2 : frame + 4])
        header = bytearray(data[frame : frame + length] + b"\x04\x11\x00")
        header[3], header[9] = header[3] + 3, 4
        data = data[:frame] + bytes(header) + data[frame + length :]
    event = check_image("k", data, ImagePolicy(check="header", short_side=256))
    assert isinstance(event, Event)
    assert "900 scans" in event.detail


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
        manifest = whole(request(originals, tmp_path / jpeg, images=ImagePolicy(jpeg=jpeg), num_shards=1))
        found[jpeg] = manifest, members(tmp_path / jpeg)
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
