"""Every row ends with one status and one reason, the same whatever the order of the answers."""

import hashlib
import io
import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import cv2
import msgspec
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dataprep.errors import BuildError, UsageError
from dataprep.fetched.collect import (
    RESIZE_MODES,
    DuplicatePolicy,
    EncodedImage,
    EncodeOptions,
    RejectedImageError,
    RowFilter,
    RowOptions,
    collect,
    count_reasons,
    count_statuses,
    dhash_of,
    duplicates_of,
    encode_image,
    filter_reason,
    read_image,
    refuse_absent_columns,
    size_reason,
)
from dataprep.fetched.shard import rows_parquet, schema_with, stats_json, write_samples
from dataprep.formats.pictures import MAX_SCANS
from dataprep.web.requests import Outcome, Status
from tests.dataprep.fetched.laion_tables import answers, table_rows
from tests.dataprep.fetched.pictures import encoded, photo, png_cases
from tests.support.img2dataset import PYTHON

IMAGES = [encoded(photo(80, 60, seed), "JPEG") for seed in range(4)]
BODIES = [
    IMAGES[0],
    None,
    IMAGES[1],
    IMAGES[0],
    b"<html>",
    IMAGES[2][:700],
    IMAGES[3],
    encoded(photo(80, 60, 1), "PNG"),
]
ROWS = [
    {"URL": f"http://h/{i}.jpg", "TEXT": f"text {i}", "punsafe": i / 10, "md5": hashlib.md5(body or b"").hexdigest()}
    for i, body in enumerate(BODIES)
]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return table_rows(tmp_path_factory.mktemp("table"), ROWS)


def _ends(rows, options, order=None, bodies=BODIES):
    spool = io.BytesIO()
    results = collect(rows, answers(bodies, order), options, spool)
    return results, spool


def test_every_row_has_one_status_and_one_reason(table):
    options = RowOptions(
        row_filter=RowFilter(max_punsafe=0.6),
        encode=EncodeOptions(image_size=32),
        duplicates=DuplicatePolicy(exact="drop"),
    )
    results, spool = _ends(table[1], options)
    assert [(result.status, result.reason) for result in results] == [
        ("success", ""),
        ("failed_to_download", "http 404"),
        ("success", ""),
        ("duplicate", "exact duplicate"),
        ("failed_to_resize", "no image"),
        ("failed_to_resize", "truncated"),
        ("success", ""),
        ("filtered", "punsafe"),
    ]
    assert results[3].duplicate_of == table[1][0].key
    assert results[2].digest == hashlib.sha256(IMAGES[1]).hexdigest()
    assert read_image(spool, results[2]).startswith(b"\xff\xd8\xff")
    assert (results[2].image.width, results[2].image.height) == (43, 32)
    assert count_statuses(results) == {
        "success": 3,
        "failed_to_download": 1,
        "failed_to_resize": 2,
        "filtered": 1,
        "duplicate": 1,
    }
    assert sum(count_reasons(results).values()) == len(ROWS)


def test_perceptual_duplicates_are_reported_and_kept(table):
    results, _ = _ends(table[1], RowOptions(duplicates=DuplicatePolicy(perceptual="report", max_distance=2)))
    assert results[7].status == results[3].status == "success"
    assert results[7].duplicate_of == table[1][2].key
    assert results[3].duplicate_of == table[1][0].key


@given(order=st.permutations(range(len(BODIES))))
@settings(derandomize=True, max_examples=25)
@pytest.mark.parametrize("format_name", ["webdataset", "tfrecord"])
def test_files_do_not_depend_on_the_order_of_the_answers(table, format_name, order):
    tables, rows = table
    options = RowOptions(duplicates=DuplicatePolicy(exact="drop", perceptual="report"))
    schema = schema_with(tables.carried, options)

    def files(order):
        results, spool = _ends(rows, options, order)
        stream = io.BytesIO()
        places = write_samples(stream, format_name, rows, results, schema, spool)
        return (
            stream.getvalue(),
            places,
            rows_parquet(rows, results, schema),
            stats_json(count_statuses(results), count_reasons(results)),
        )

    assert files(order) == files(None)


def test_an_image_with_another_hash_is_a_failed_download(table):
    bodies = [IMAGES[3], *BODIES[1:]]
    results, _ = _ends(table[1], RowOptions(verify_hash="md5"), bodies=bodies)
    assert (results[0].status, results[0].reason) == ("failed_to_download", "hash mismatch")
    assert results[2].status == "success"
    with pytest.raises(UsageError, match="`verify_hash` crc32: expected one of md5, sha256"):
        RowOptions(verify_hash="crc32")


def test_a_row_without_the_hash_to_verify_is_not_requested(tmp_path):
    _, rows = table_rows(tmp_path, [{"URL": "http://h/a", "md5": None}, {"URL": "http://h/b", "md5": "0" * 32}])
    results, _ = _ends(rows, RowOptions(verify_hash="md5"), bodies=[IMAGES[0], IMAGES[1]])
    assert [result.reason for result in results] == ["no hash", "hash mismatch"]


def test_row_options_are_read_back_from_json():
    options = RowOptions(
        row_filter=RowFilter(nsfw=("UNLIKELY",), max_image_area=10**6, max_aspect_ratio=3.0),
        encode=EncodeOptions(resize_mode="border"),
        duplicates=DuplicatePolicy(perceptual="drop", max_distance=3),
        verify_hash="sha256",
    )
    for written in (options, RowOptions()):
        assert msgspec.convert(json.loads(json.dumps(asdict(written))), RowOptions) == written


def test_unrequested_or_duplicate_outcomes_are_refused(table):
    for keys in ((0, 0), (99,), (-1,)):
        with pytest.raises(BuildError, match=f"row {keys[-1]} that was not requested or came twice"):
            collect(table[1], lambda _, keys=keys: (Outcome(k, Status.DNS) for k in keys), RowOptions(), io.BytesIO())


def test_a_filtered_row_is_not_requested(table):
    asked = []

    def fetch(requests):
        asked.extend(request.key for request in requests)
        return iter(())

    results = collect(table[1], fetch, RowOptions(row_filter=RowFilter(max_punsafe=0.1)), io.BytesIO())
    assert asked == [0, 1]
    assert [result.reason for result in results] == ["no answer"] * 2 + ["punsafe"] * 6


def test_a_row_that_no_reader_would_take_is_filtered(tmp_path):
    _, rows = table_rows(tmp_path, [{"URL": "http://h/a", "TEXT": "x" * 40_000}, {"URL": "http://h/b", "TEXT": "x"}])
    results, _ = _ends(rows, RowOptions(), bodies=[IMAGES[0], IMAGES[1]])
    assert [(result.status, result.reason) for result in results] == [("filtered", "row too large"), ("success", "")]


def test_every_status_of_the_fetcher_has_a_phrase(table):
    for status in Status:
        if status is Status.SUCCESS:
            continue
        outcome = Outcome(0, status, "details that differ", http_code=503)
        results = collect(table[1][:1], lambda _, outcome=outcome: iter([outcome]), RowOptions(), io.BytesIO())
        assert results[0].status == "failed_to_download"
        assert results[0].reason == ("http 503" if status is Status.HTTP else status.value.replace("_", " "))


def test_exact_duplicates_follow_the_first():
    duplicates = list(duplicates_of(["a", "b", "a", "a"], [1, 2, 3, 4], DuplicatePolicy(exact="drop")))
    assert [(duplicate.position, duplicate.first, duplicate.action, duplicate.reason) for duplicate in duplicates] == [
        (2, 0, "drop", "exact duplicate"),
        (3, 0, "drop", "exact duplicate"),
    ]


def test_perceptual_duplicates_are_measured_from_the_first_that_stays():
    """0b0 and 0b1 differ in one bit, 0b11 from 0b0 in two: it is no duplicate of the dropped 0b1."""
    policy = DuplicatePolicy(perceptual="drop", max_distance=1)
    duplicates = list(duplicates_of(["a", "b", "c", "d"], [0b0, 0b1, 0b11, 2**63], policy))
    assert [(duplicate.position, duplicate.first) for duplicate in duplicates] == [(1, 0), (3, 0)]
    assert not list(duplicates_of(["a", "b"], [0, 1], DuplicatePolicy(perceptual="drop")))


def test_equal_files_are_dropped_also_where_they_look_like_an_image_that_is_only_reported():
    """`b` looks like `a` and stays; the second `b` has the bytes of an image that stays."""
    policy = DuplicatePolicy(exact="drop", perceptual="report")
    duplicates = list(duplicates_of(["a", "b", "b", "b"], [7, 7, 7, 7], policy))
    assert [(duplicate.position, duplicate.first, duplicate.reason) for duplicate in duplicates] == [
        (1, 0, "perceptual duplicate"),
        (2, 1, "exact duplicate"),
        (3, 1, "exact duplicate"),
    ]


GOLDEN = json.loads((Path(__file__).parent / "resizer.json").read_text())
QUALITIES = {"jpg": 95, "png": 3, "webp": 90}


def _encode(data: bytes, row_filter: RowFilter | None = None, **options) -> EncodedImage:
    return encode_image(data, EncodeOptions(**options), row_filter or RowFilter())


def _pixels(data: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)


@pytest.mark.parametrize(
    ("mode", "bigger", "file_format"),
    [(mode, bigger, "jpg") for mode in RESIZE_MODES for bigger in (True, False)]
    + [("border", True, "png"), ("keep_ratio", False, "webp")],  # whatever resizes, encodes in the same way
)
def test_encoded_bytes_equal_those_of_img2dataset(mode, bigger, file_format):
    for name, data in png_cases().items():
        found = _encode(
            data,
            image_size=256,
            resize_mode=mode,
            resize_only_if_bigger=bigger,
            skip_reencode=False,
            encode_format=file_format,
            encode_quality=QUALITIES[file_format],
        )
        sizes = [found.width, found.height, found.original_width, found.original_height]
        digest = hashlib.sha256(found.data).hexdigest()[:16]
        assert [digest, *sizes] == GOLDEN[f"{mode} {bigger} {file_format} {name}"], name


@pytest.mark.parametrize("options", [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True}])
@pytest.mark.parametrize("size", [(400, 310), (301, 203), (1, 1), (7, 300)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_our_jpeg_decoder_gives_opencvs_pixels(options, size, mode):
    data = encoded(photo(*size).convert(mode), "JPEG", quality=88, **options)
    ours = _encode(data, resize_mode="no", skip_reencode=False, encode_format="png", encode_quality=3)
    assert np.array_equal(_pixels(ours.data), _pixels(data))


@pytest.mark.long
def test_the_golden_digests_are_reproduced_by_img2dataset():
    script = Path(__file__).parent / "make_resizer_json.py"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "NO_ALBUMENTATIONS_UPDATE": "1"}
    command = [PYTHON, "-W", "ignore", script]
    made = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert json.loads(made.stdout) == GOLDEN


def test_an_unchanged_jpeg_keeps_its_bytes():
    small, large = (encoded(photo(side, side), "JPEG") for side in (256, 257))
    assert _encode(small).data == small
    assert _encode(large).data != large
    assert _encode(small, skip_reencode=False).data != small
    assert _encode(encoded(photo(40, 40), "PNG")).data.startswith(b"\xff\xd8\xff")
    adobe = encoded(photo(40, 40), "JPEG", keep_rgb=True)
    assert adobe[6:10] not in (b"JFIF", b"Exif")
    assert _encode(adobe).data == adobe


def test_cmyk_becomes_rgb():
    data = encoded(photo(40, 40).convert("CMYK"), "JPEG")
    found = _encode(data)
    assert simplejpeg.decode_jpeg_header(found.data)[2] == "YCbCr"


def test_16_bits_become_their_upper_8():
    grey_HW = np.asarray(photo(60, 50).convert("L")).astype(np.uint16)
    data = encoded(Image.fromarray(grey_HW * 256 + 255), "PNG")
    found = _encode(data, encode_format="png", encode_quality=1)
    assert np.array_equal(_pixels(found.data), grey_HW)


def test_the_first_frame_of_an_animation_is_encoded():
    frames = [photo(60, 50, seed).quantize(32) for seed in range(3)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    found = _encode(data, encode_format="png", encode_quality=1)
    first_HWC = np.asarray(frames[0].convert("RGB"))
    assert np.array_equal(_pixels(found.data)[:, :, ::-1], first_HWC)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "WEBP", "BMP"])
def test_every_truncation_is_rejected(file_format):
    """At lengths all over the file; OpenCV alone takes most of the JPEGs, filled up with grey."""
    image = photo(90, 70).quantize(64) if file_format == "GIF" else photo(90, 70)
    data = encoded(image, file_format)
    _encode(data)
    for length in range(0, len(data) * 9 // 10, max(1, len(data) // 40)):
        with pytest.raises(RejectedImageError):
            _encode(data[:length])
        if file_format in ("JPEG", "PNG", "GIF"):  # in the others zeros are pixels
            with pytest.raises(RejectedImageError):
                _encode(data[:length].ljust(len(data), b"\0"))  # as a download that stopped leaves it


def _bomb(jpeg: bytes) -> bytes:
    at = jpeg.index(b"\xff\xc0")
    return jpeg[: at + 5] + b"\xff\xdc\xff\xdc" + jpeg[at + 9 :]


def test_hostile_images_are_rejected_before_they_are_decoded():
    jpeg = encoded(photo(90, 70), "JPEG")
    tiff = encoded(photo(90, 70), "TIFF")
    scans = encoded(photo(90, 70), "JPEG", progressive=True)[:-2] + b"\xff\xda\0\0" * MAX_SCANS + b"\xff\xd9"
    for data, reason in ((_bomb(jpeg), "too large"), (tiff, "no image"), (b"", "empty"), (scans, "too many scans")):
        with pytest.raises(RejectedImageError, match=reason):
            _encode(data)
    with pytest.raises(RejectedImageError, match="cannot be encoded"):
        _encode(encoded(photo(640, 1), "PNG"), resize_only_if_bigger=False)


def test_limits_are_measured_on_the_image():
    data = encoded(photo(90, 70), "JPEG")
    for limits, reason in (
        (RowFilter(min_image_size=71), "image too small"),
        (RowFilter(max_image_area=6299), "image area too large"),
        (RowFilter(max_aspect_ratio=1.2), "aspect ratio too large"),
    ):
        with pytest.raises(RejectedImageError, match=reason):
            _encode(data, limits)
    assert _encode(data, RowFilter(min_image_size=70, max_image_area=6300, max_aspect_ratio=1.3)).width == 90


def test_exif_is_recorded_as_img2dataset_records_it():
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "Maker\0"
    exif.get_ifd(0x8769)[0x9003] = "2020:01:02 03:04:05"
    data = encoded(photo(90, 70), "JPEG", exif=exif)
    found = _encode(data)
    assert json.loads(found.exif) == {
        "EXIF DateTimeOriginal": "2020:01:02 03:04:05",
        "Image ExifOffset": json.loads(found.exif).get("Image ExifOffset"),
        "Image Make": "Maker",
        "Image Orientation": "6",
    }
    assert (found.width, found.height) == (90, 70)  # as stored: its orientation is recorded, not applied
    assert _encode(encoded(photo(90, 70), "JPEG")).exif == "{}"
    damaged = data.replace(b"Exif\0\0II", b"Exif\0\0XX").replace(b"Exif\0\0MM", b"Exif\0\0XX")
    assert _encode(damaged).exif == "{}"


def test_dhash_is_alike_for_images_that_look_alike():
    image = Image.open(io.BytesIO(encoded(photo(300, 200).resize((60, 40)).resize((300, 200)), "PNG")))
    hashes = [
        dhash_of(np.asarray(variant)[:, :, ::-1])
        for variant in (image, image.resize((150, 100)), Image.open(io.BytesIO(encoded(image, "JPEG", quality=70))))
    ]
    other = dhash_of(np.asarray(photo(300, 200, 9).rotate(90))[:, :, ::-1])
    near = [(one ^ two).bit_count() for one, two in itertools.combinations(hashes, 2)]
    assert max(near) <= 4
    assert all((one ^ other).bit_count() > 12 for one in hashes)
    ramp = np.tile(np.arange(90, dtype=np.uint8), (80, 1))
    assert dhash_of(ramp) == 2**64 - 1
    assert dhash_of(ramp[:, ::-1]) == 0


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (DuplicatePolicy, {"exact": "delete"}, "`exact_duplicates` 'delete': expected one of keep, report, drop"),
        (DuplicatePolicy, {"perceptual": ""}, "`perceptual_duplicates` '': expected one of keep"),
        (DuplicatePolicy, {"max_distance": 64}, "`duplicate_distance` must be 0 to 63 bits, got 64"),
        (EncodeOptions, {"image_size": 0}, "`image_size` must be 1 pixel or more, got 0"),
        (EncodeOptions, {"resize_mode": "stretch"}, "`resize_mode` 'stretch': expected one of no, keep_ratio"),
        (EncodeOptions, {"encode_format": "gif"}, "`encode_format` 'gif': expected one of jpg, png, webp"),
        (EncodeOptions, {"encode_quality": 0}, "`encode_quality` 0: jpg takes 1 to 100"),
        (EncodeOptions, {"encode_format": "png", "encode_quality": 10}, "`encode_quality` 10: png takes 0 to 9"),
        (RowFilter, {"min_image_size": -1}, "`min_image_size` must be 0 or more, got -1"),
        (RowFilter, {"max_image_area": 0}, "`max_image_area` must be 1 or more, got 0"),
        (RowFilter, {"max_aspect_ratio": 0.5}, "`max_aspect_ratio` must be 1 or more, got 0.5"),
    ],
)
def test_impossible_options_are_refused(kind, options, text):
    with pytest.raises(UsageError, match=text):
        kind(**options)


def test_importing_the_encoder_does_not_import_opencv():
    code = "import sys, dataprep.fetched.shard; sys.exit('cv2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


ROW = {
    "url": "http://h/a.jpg",
    "width": 640,
    "height": 480,
    "similarity": 0.31,
    "punsafe": 0.1,
    "pwatermark": 0.2,
    "nsfw": "UNLIKELY",
    "language": "en",
}


@pytest.mark.parametrize(
    ("limits", "changes", "reason"),
    [
        ({}, {}, ""),
        ({}, {"url": None}, "no url"),
        ({}, {"url": "  "}, "no url"),
        ({"min_image_size": 480}, {}, ""),
        ({"min_image_size": 481}, {}, "image too small"),
        ({"min_image_size": 481}, {"width": None}, ""),
        ({"min_image_size": 481}, {"height": 0}, ""),
        ({"max_image_area": 640 * 480}, {}, ""),
        ({"max_image_area": 640 * 480 - 1}, {}, "image area too large"),
        ({"max_aspect_ratio": 640 / 480}, {}, ""),
        ({"max_aspect_ratio": 1.3}, {}, "aspect ratio too large"),
        ({"min_similarity": 0.31}, {}, ""),
        ({"min_similarity": 0.32}, {}, "similarity"),
        ({"min_similarity": 0.3}, {"similarity": None}, "similarity"),
        ({"max_punsafe": 0.1}, {}, ""),
        ({"max_punsafe": 0.09}, {}, "punsafe"),
        ({"max_punsafe": 0.5}, {"punsafe": None}, "punsafe"),
        ({"max_pwatermark": 0.19}, {}, "pwatermark"),
        ({"nsfw": ("unlikely",)}, {}, ""),
        ({"nsfw": ("UNLIKELY", "UNSURE")}, {"nsfw": "NSFW"}, "nsfw"),
        ({"nsfw": ("UNLIKELY",)}, {"nsfw": None}, "nsfw"),
        ({"languages": ("de", "EN")}, {}, ""),
        ({"languages": ("de",)}, {}, "language"),
    ],
)
def test_each_filter_gives_its_reason(limits, changes, reason):
    assert filter_reason(ROW | changes, RowFilter(**limits)) == reason


def test_a_limit_on_an_absent_column_is_refused():
    refuse_absent_columns(RowFilter(min_image_size=5), {"url": "URL"})
    refuse_absent_columns(RowFilter(max_punsafe=0.0), {"url": "URL", "punsafe": "punsafe"})
    with pytest.raises(UsageError, match="`max_punsafe` needs a column punsafe, but the table has no such column"):
        refuse_absent_columns(RowFilter(max_punsafe=0.0), {"url": "URL"})
    with pytest.raises(UsageError, match="`nsfw` needs a column nsfw"):
        refuse_absent_columns(RowFilter(nsfw=("UNLIKELY",)), {"url": "URL"})


@given(width=st.integers(1, 10_000), height=st.integers(1, 10_000), least=st.integers(0, 10_000))
@settings(derandomize=True)
def test_a_size_is_judged_whichever_side_is_longer(width, height, least):
    limits = RowFilter(min_image_size=least, max_aspect_ratio=2)
    assert size_reason(width, height, limits) == size_reason(height, width, limits)
    kept = min(width, height) >= least and max(width, height) <= 2 * min(width, height)
    assert (size_reason(width, height, limits) == "") == kept
