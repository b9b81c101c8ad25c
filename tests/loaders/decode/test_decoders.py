"""Decoding against full decodes and Pillow's and torchvision's own results, and against bytes that mean harm."""

import importlib.util
import io
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dataprep.errors import ImageError, UsageError
from dataprep.formats import pictures
from loaders.decode import decoders as decode
from loaders.decode.crop import View, evaluation_view, letterbox_views, train_views
from loaders.decode.decoders import extension_available, open_decoder, without_lower_rows
from tests.support.jpeg_crops import compare_crops
from tests.support.jpeg_forms import by_pillow, jpegs, picture
from tests.support.jpeg_parts import HUFFMAN_TABLES, without

needs_extension = pytest.mark.skipif(not extension_available(), reason="loaders.decode._jpeg was not built")
BACKENDS = [pytest.param("extension", marks=needs_extension), "library"]
SOURCE, CHECK = Path(decode.__file__).with_name("_jpeg.c"), Path(pictures.__file__).with_name("_check.c")


def decode_one(decoder, data, view, size):
    out = np.full((1, size, size, 3), 7, np.uint8)
    (reason,) = decoder.decode_many([data], [view], out, [0])
    return out[0], reason


def pillow_result(data, view, size, resampling):
    box = (
        Image.open(io.BytesIO(data))
        .convert("RGB")
        .crop((view.left, view.top, view.left + view.width, view.top + view.height))
    )
    scaled = np.asarray(box.resize((view.resized_width, view.resized_height), resampling))
    window = scaled[view.out_top : view.out_top + size, view.out_left : view.out_left + size]
    return window[:, ::-1] if view.flip else window


def random_view(rng, height, width, size):
    box_height, box_width = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
    top, left = int(rng.integers(0, height - box_height + 1)), int(rng.integers(0, width - box_width + 1))
    resized_height, resized_width = (int(each) for each in rng.integers(size, 2 * size, 2))
    return View(
        top,
        left,
        box_height,
        box_width,
        resized_height,
        resized_width,
        int(rng.integers(0, resized_height - size + 1)),
        int(rng.integers(0, resized_width - size + 1)),
        bool(rng.integers(0, 2)),
    )


@needs_extension
@pytest.mark.parametrize("seed", range(40))
def test_inside_the_view_a_crop_equals_the_full_decode(seed):
    assert compare_crops(seed, pictures=1, most_pixels=150) > 400


@needs_extension
@pytest.mark.parametrize(
    ("interpolation", "resampling"),
    [("bicubic", Image.Resampling.BICUBIC), ("bilinear", Image.Resampling.BILINEAR)],
)
def test_scaling_equals_pillow_bit_for_bit(interpolation, resampling):
    rng = np.random.default_rng(1)
    decoder = open_decoder(interpolation)
    for _ in range(12):
        height, width = (int(side) for side in rng.integers(1, 400, 2))
        for kind, data in jpegs(rng, height, width):
            size = int(rng.integers(1, 130))
            view = random_view(rng, height, width, size)
            found, reason = decode_one(decoder, data, view, size)
            assert reason is None
            assert np.array_equal(found, pillow_result(data, view, size, resampling)), (kind, view)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_views_show_what_torchvisions_transforms_show(backend, interpolation):
    from torchvision.transforms import InterpolationMode, v2

    rng = np.random.default_rng(2)
    mode = InterpolationMode[interpolation.upper()]
    decoder = open_decoder(interpolation, backend)
    most = 0 if backend == "extension" else 1
    for position in range(12):
        height, width = (int(side) for side in rng.integers(60, 500, 2))
        data = simplejpeg.encode_jpeg(picture(rng, height, width), 95)
        image = Image.open(io.BytesIO(data))

        (view,) = train_views(0, [position], [height], [width], size=96)
        box = (view.top, view.left, view.height, view.width)
        expected = v2.functional.resized_crop(image, *box, [96, 96], mode, antialias=True)
        expected = np.asarray(v2.functional.horizontal_flip(expected) if view.flip else expected, np.int64)
        assert np.abs(decode_one(decoder, data, view, 96)[0] - expected).max() <= most

        view = evaluation_view(height, width, size=96, resize=110)
        evaluate = v2.Compose([v2.Resize(110, mode), v2.CenterCrop(96)])
        assert np.abs(decode_one(decoder, data, view, 96)[0] - np.asarray(evaluate(image), np.int64)).max() <= most


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_antialiasing_scaling_is_plain_bilinear(backend):
    import torch

    rng = np.random.default_rng(3)
    decoder = open_decoder("bilinear-no-antialias", backend)
    for _ in range(20):
        height, width = (int(side) for side in rng.integers(20, 400, 2))
        data = simplejpeg.encode_jpeg(picture(rng, height, width), 95)
        view = View(3, 5, height - 7, width - 8, 64, 64, 0, 0, False)
        box = simplejpeg.decode_jpeg(data)[3 : height - 4, 5 : width - 3]
        floats = torch.from_numpy(box.astype(np.float32)).permute(2, 0, 1)[None]
        expected = torch.nn.functional.interpolate(floats, (64, 64), mode="bilinear")[0].permute(1, 2, 0).numpy()
        assert np.abs(decode_one(decoder, data, view, 64)[0] - expected).max() <= 1.01


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "bilinear-no-antialias"])
def test_the_library_backend_does_without_torch(interpolation, monkeypatch):
    rng = np.random.default_rng(4)
    data = simplejpeg.encode_jpeg(picture(rng, 200, 300), 95)
    views = [random_view(rng, 200, 300, 50) for _ in range(10)]
    out = np.zeros((2, 10, 50, 50, 3), np.uint8)
    with_torch = open_decoder(interpolation, "library")
    assert with_torch.decode_many([data] * 10, views, out[0], range(10)) == [None] * 10
    torchs_pixels = with_torch.pixels
    monkeypatch.setitem(sys.modules, "torch", None)
    without = open_decoder(interpolation, "library")
    assert without.decode_many([data] * 10, views, out[1], range(10)) == [None] * 10
    assert "torch" in with_torch.name and "Pillow" in without.name
    assert torchs_pixels != without.pixels
    if extension_available():
        same = torchs_pixels if interpolation == "bilinear-no-antialias" else without.pixels
        assert open_decoder(interpolation).pixels == same
    assert np.abs(out[0].astype(int) - out[1]).max() <= 2


@needs_extension
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("without", ["PLAIN_C", "WITHOUT_AVX512"])
def test_code_for_other_processors_equals_that_for_this_one(tmp_path, without):
    """Other processors, and libraries whose reader cannot be replaced, use these loops."""
    target = tmp_path / f"_jpeg{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    flags = ["-O1", "-shared", "-fPIC", "-ffp-contract=off", f"-D{without}", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, f"-I{include}", str(SOURCE), "-ljpeg", "-o", str(target)], check=True)
    spec = importlib.util.spec_from_file_location("_jpeg", target)
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    from loaders.decode import _jpeg

    rng = np.random.default_rng(5)
    for _ in range(10):
        height, width = (int(side) for side in rng.integers(1, 300, 2))
        size = int(rng.integers(1, 100))
        images = [data for _, data in jpegs(rng, height, width)]
        views = np.array([random_view(rng, height, width, size) for _ in images], np.int32)
        rows = np.arange(len(images), dtype=np.int32)
        for number in decode.FILTERS.values():
            out = np.zeros((2, len(images), size, size, 3), np.uint8)
            assert not any(_jpeg.decode_views(images, views, rows, [out[0, :, None]], number))
            assert not any(plain.decode_views(images, views, rows, [out[1, :, None]], number))
            assert np.array_equal(out[0], out[1])


@needs_extension
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("source", [SOURCE, CHECK, CHECK.with_name("_restart.c")], ids=lambda path: path.name)
def test_the_extensions_use_only_pythons_stable_interface(source):
    """One wheel for all versions of Python rests on it."""
    include = sysconfig.get_paths()["include"]
    flags = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-DPy_LIMITED_API=0x030b0000", f"-I{include}"]
    subprocess.run(["cc", *flags, str(source)], check=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_images_other_than_plain_jpegs_go_through_pillow(backend):
    rng = np.random.default_rng(6)
    image = Image.fromarray(picture(rng, 90, 120))
    files = []
    for kind, mode in (("JPEG", "CMYK"), ("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("WEBP", "RGB"), ("GIF", "P")):
        data = io.BytesIO()
        image.convert(mode).save(data, kind)
        files.append(data.getvalue())
    view = View(10, 20, 60, 70, 32, 32, 0, 0, True)
    decoder = open_decoder("bicubic", backend)
    out = np.zeros((len(files) + 1, 32, 32, 3), np.uint8)
    assert decoder.decode_many(files, [view] * len(files), out, range(1, len(files) + 1)) == [None] * len(files)
    assert not out[0].any()
    for data, found in zip(files, out[1:], strict=True):
        assert np.array_equal(found, pillow_result(data, view, 32, Image.Resampling.BICUBIC))
        assert decoder.image_size(data) == (90, 120)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_bad_image_leaves_the_others_alone(backend):
    good = simplejpeg.encode_jpeg(picture(np.random.default_rng(7), 50, 60), 90)
    decoder = open_decoder("bicubic", backend)
    view = View(0, 0, 50, 60, 24, 24, 0, 0, False)
    wide = View(0, 0, 50, 61, 24, 24, 0, 0, False)
    bomb = bytearray(good)
    at = bomb.index(b"\xff\xc0") + 5
    bomb[at : at + 4] = (20_000).to_bytes(2) * 2
    precise = bytearray(good)
    precise[at - 1] = 12
    images = [good, b"", b"no image", good[:10], good, bytes(bomb), bytes(precise), good]
    views = [view, view, view, view, wide, view, view, view]
    out = np.full((8, 24, 24, 3), 9, np.uint8)
    reasons = decoder.decode_many(images, views, out, range(8))
    assert [reason is None for reason in reasons] == [True, *[False] * 6, True]
    assert out[0].any() and np.array_equal(out[0], out[7])
    assert not out[1:7].any()
    assert "the view is not inside the image" in reasons[4]
    assert "100,000,000 pixels" in reasons[5]
    assert all("\n" not in reason for reason in reasons if reason)
    for data in images[1:4]:
        with pytest.raises(ImageError, match=r"^not an image of a known format: .*; expected a JPEG$"):
            decoder.image_size(data)


def with_thumbnail(data):
    """A JPEG that holds another one in a segment of its header."""
    small = simplejpeg.encode_jpeg(picture(np.random.default_rng(9), 8, 8), 50)
    return data[:2] + b"\xff\xe1" + (len(small) + 2).to_bytes(2, "big") + small + data[2:]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("top", [0, 64])
def test_a_jpeg_whose_data_end_early_is_refused(backend, top):
    """Also where the view has only rows that are there: whether an image is delivered does not depend on its crop."""
    whole = simplejpeg.encode_jpeg(picture(np.random.default_rng(8), 128, 128), 90)
    half, decoder = len(whole) // 2, open_decoder("bicubic", backend)
    view = View(top, 0, 16, 128, 64, 64, 0, 0, False)
    expected, _ = decode_one(decoder, whole, view, 64)
    early = [whole[:half], whole[:half] + bytes(half), whole[:-2], with_thumbnail(whole)[:-half]]
    early += [by_pillow(picture(np.random.default_rng(8), 128, 128), progressive=True)[:-200]]
    for data in [*early, *map(memoryview, early)]:
        found, reason = decode_one(decoder, data, view, 64)
        assert reason.startswith("its data end early: it has no end marker; by Pillow: ")
        assert not found.any()
    for data in (whole, with_thumbnail(whole), whole + b"a film" * 100, b"\xff\xd8\xff" + whole[2:]):
        found, reason = decode_one(decoder, data, view, 64)
        assert reason is None
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("at", "inserted", "reason"),
    [
        (-900, b"\xff\x02", "a marker inside of its data is not one of an image"),
        (-900, b"\xff\xd8", "a marker inside of its data is not one of an image"),
        (-900, b"\xff\xe2\xff\x00", "its data end early: it has no end marker"),
        (2, b"\0", "its first marker is not behind its start"),
    ],
)
@needs_extension
def test_a_jpeg_with_a_marker_that_none_has_there_is_refused(at, inserted, reason):
    """libjpeg ends such an image there, and fills what is missing with grey, or begins it later than others do."""
    whole = simplejpeg.encode_jpeg(picture(np.random.default_rng(8), 128, 128), 90)
    view = View(0, 0, 16, 128, 64, 64, 0, 0, False)
    found, given = decode_one(open_decoder(), whole[:at] + inserted + whole[at:], view, 64)
    assert given.startswith(f"{reason}; by Pillow: ")
    assert not found.any()


@needs_extension
def test_corrupt_jpegs_are_decoded_as_libjpeg_does():
    """Codes that the extension's own reader refuses are read again by libjpeg's."""
    rng = np.random.default_rng(9)
    decoder, compared = open_decoder(), 0
    originals = [data for kind, data in jpegs(rng, 64, 80) if "progressive" not in kind]
    view = View(0, 0, 64, 80, 64, 80, 0, 0, False)
    for _ in range(600):
        data = bytearray(originals[rng.integers(len(originals))])
        start = data.index(b"\xff\xda") + 14  # behind the scan's header, so that the tables stay what they are
        for at in rng.integers(start, len(data) - 2, rng.integers(1, 4)):
            data[at] = rng.integers(256)
        found, reason = decode_one(decoder, bytes(data), view, 64)
        try:
            full = simplejpeg.decode_jpeg(bytes(data), strict=False)
        except ValueError:
            continue
        if reason is not None:  # a byte became a marker
            assert "marker" in reason
            continue
        compared += 1
        assert np.array_equal(found, full[:, :64])
    assert compared > 400


@needs_extension
@pytest.mark.parametrize("quality", [20, 75, 98, 100])
@pytest.mark.parametrize("optimize", [False, True])
def test_a_corner_is_the_same_after_images_with_the_same_tables_or_others(quality, optimize):
    """Nearly all blocks are read over; with noise of quality 100 many of them have all coefficients, and long codes."""
    rng = np.random.default_rng(quality)
    noise = rng.integers(0, 256, (130, 170, 3), dtype=np.uint8)
    images = [by_pillow(each, quality=quality, optimize=optimize) for each in (noise, picture(rng, 130, 170), noise)]
    images = [each for each in images for _ in range(3)]
    found = np.full((len(images), 9, 9, 3), 7, np.uint8)
    view = View(120, 160, 9, 9, 9, 9, 0, 0, False)
    assert open_decoder().decode_many(images, [view] * len(images), found, range(len(images))) == [None] * len(images)
    for data, each in zip(images, found, strict=True):
        assert np.array_equal(each, np.asarray(Image.open(io.BytesIO(data)))[120:129, 160:169])


def with_odd_restarts(rng, data):
    """The file with markers that are missing, repeated, renumbered of another kind, or among odd bytes."""
    start = data.index(b"\xff\xda") + 14
    ends = [at for at in range(start, len(data) - 1) if data[at] == 0xFF and 0xD0 <= data[at + 1] <= 0xD7]
    index = int(rng.integers(len(ends) - 9))
    at, second, ninth = ends[index], ends[index + 1], ends[index + 8]
    exchanged = bytearray(data)
    exchanged[at + 1], exchanged[second + 1] = data[second + 1], data[at + 1]
    return {
        "without one": data[:at] + data[at + 2 :],
        "without an interval": data[:at] + data[second:],
        "without eight intervals": data[:at] + data[ninth:],
        "without eight markers": data[:at] + data[at:ninth].replace(data[at : at + 2], b"") + data[ninth + 2 :],
        "an interval twice": data[:second] + data[at:],
        "nine intervals twice": data[:ninth] + data[at:],
        "another number": data[: at + 1] + bytes([0xD0 + int(rng.integers(8))]) + data[at + 2 :],
        "two in exchange": bytes(exchanged),
        "an early end": data[: at + 1] + b"\xd9" + data[at + 2 :],
        "another marker": data[: at + 1] + b"\x01" + data[at + 2 :],
        "a fill byte": data[:at] + b"\xff" + data[at:],
        "more bytes": data[:at] + rng.bytes(9).replace(b"\xff", b"") + data[at:],
        "fewer bytes": data[: at - 3] + data[at:],
        "cut": data[: at + 2],
    }  # fmt: skip


@needs_extension
@pytest.mark.parametrize("sampling", [0, 2])
def test_odd_restart_markers_are_decoded_as_libjpeg_does(sampling):
    rng = np.random.default_rng(30 + sampling)
    decoder = open_decoder()
    good = by_pillow(picture(rng, 120, 200), subsampling=sampling, restart_marker_blocks=3 - sampling // 2)
    for _ in range(12):
        for kind, data in with_odd_restarts(rng, good).items():
            full = simplejpeg.decode_jpeg(data, strict=False)
            for _ in range(6):
                size = int(rng.integers(1, 90))
                top, left = int(rng.integers(0, 121 - size)), int(rng.integers(0, 201 - size))
                found, reason = decode_one(decoder, data, View(top, left, size, size, size, size, 0, 0, False), size)
                if kind == "cut":
                    assert "end early" in reason
                    continue
                assert reason is None
                assert np.array_equal(found, full[top : top + size, left : left + size]), (kind, top, left, size)


@needs_extension
def test_hostile_bytes_neither_crash_nor_hang():
    """In a process of its own with bounded memory, so that a crash fails only this test."""
    script = Path(__file__).parents[2] / "support" / "fuzz_jpeg.py"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, str(script), "--images", "4000"], env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "4000 images" in done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_threads_share_a_decoder(backend):
    rng = np.random.default_rng(10)
    images = [simplejpeg.encode_jpeg(picture(rng, 120, 160), 90) for _ in range(24)]
    views = train_views(0, range(24), [120] * 24, [160] * 24, size=64)
    decoder = pickle.loads(pickle.dumps(open_decoder("bicubic", backend)))
    expected, found = np.zeros((2, 24, 64, 64, 3), np.uint8)
    decoder.decode_many(images, views, expected, range(24))
    with ThreadPoolExecutor(8) as pool:
        calls = [
            pool.submit(decoder.decode_many, images[i : i + 2], views[i : i + 2], found, [i, i + 1])
            for i in range(0, 24, 2)
            for _ in range(3)
        ]
        assert [call.result() for call in calls] == [[None, None]] * 36
    assert np.array_equal(found, expected)


@needs_extension
def test_the_extension_refuses_arguments_that_do_not_fit_together():
    from loaders.decode import _jpeg

    data = [simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8))]
    views, rows = np.array([[0, 0, 8, 8, 8, 8, 0, 0, 0]], np.int32), np.zeros(1, np.int32)
    out = np.zeros((1, 1, 8, 8, 3), np.uint8)
    assert _jpeg.decode_views([memoryview(data[0])], views, rows, [out], 1) == [None]
    assert _jpeg.decode_views(data, np.tile(views, 64), rows, [out] * 64, 1) == [None]
    for wrong in (
        (data, views[:, :8].copy(), rows, [out], 1),
        (data, views, np.zeros(2, np.int32), [out], 1),
        (data, views, rows + 1, [out], 1),
        (data, views, rows - 1, [out], 1),
        (data, views, rows, [out[0]], 1),
        (data, views, rows, [np.zeros((1, 1, 8, 9, 3), np.uint8)], 1),
        (data, views, rows, [np.zeros((1, 1, 8, 8, 3), np.float32)], 1),
        (data, views, rows, [out[..., ::-1]], 1),
        (data, views, rows, [np.zeros((1, 0, 8, 8, 3), np.uint8)], 1),
        (data, views, rows, [], 1),
        (data, views, rows, [out], 3),
        (data * 2, views, rows, [out], 1),
        (data, views, rows, [out, out], 1),
        (data, np.tile(views, 2), rows, [out, np.zeros((2, 1, 8, 8, 3), np.uint8)], 1),
        (data, np.tile(views, 65), rows, [out] * 65, 1),
        (data, np.tile(views, 65), rows, [np.zeros((1, 65, 8, 8, 3), np.uint8)], 1),
    ):
        with pytest.raises((ValueError, BufferError)):
            _jpeg.decode_views(*wrong)
    for wrong in ((["text"], views, rows, [out], 1), (data, views, rows, 1, 1), (data, views, rows, ["text"], 1)):
        with pytest.raises(TypeError):
            _jpeg.decode_views(*wrong)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear-no-antialias"])
def test_a_view_has_the_same_pixels_whatever_other_views_are_made_with_it(backend, interpolation):
    rng = np.random.default_rng(11)
    decoder = open_decoder(interpolation, backend)
    for _ in range(3):
        height, width = (int(side) for side in rng.integers(1, 300, 2))
        images = [data for _, data in jpegs(rng, height, width)]
        sizes = [40, 40, 17, 17, 17, 64]
        views = [[random_view(rng, height, width, size) for size in sizes] for _ in images]
        outs = [np.full((len(images) + 1, *shape, 3), 7, np.uint8) for shape in ((2, 40, 40), (3, 17, 17), (1, 64, 64))]
        rows = rng.permutation(len(images) + 1)[: len(images)]
        assert decoder.decode_views(images, views, outs, rows) == [None] * len(images)
        (left,) = set(range(len(images) + 1)) - set(rows.tolist())
        assert all((image == 7).all() for image in decode.images_of_row(outs, left))
        for data, of_image, row in zip(images, views, rows, strict=True):
            for view, found in zip(of_image, decode.images_of_row(outs, row), strict=True):
                expected, reason = decode_one(decoder, data, view, len(found))
                assert reason is None
                assert np.array_equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_other_formats_are_decoded_and_those_of_damaged_files_are_black(backend):
    image = picture(np.random.default_rng(2), 40, 60)
    png = io.BytesIO()
    Image.fromarray(image).save(png, "PNG")
    good = by_pillow(image)
    views = [View(0, 0, 40, 60, 32, 32, 0, 0, False), View(3, 5, 20, 30, 24, 24, 0, 0, True)]
    outside = [views[0], views[1]._replace(left=31)]
    outs = [np.full((4, 1, 32, 32, 3), 7, np.uint8), np.full((4, 1, 24, 24, 3), 7, np.uint8)]
    images, given = [png.getvalue(), b"\xff\xd8no", good, good], [views, views, outside, views]
    reasons = open_decoder("bicubic", backend).decode_views(images, given, outs, range(4))
    assert [reason is None for reason in reasons] == [True, False, False, True]
    for view, found in zip(views, decode.images_of_row(outs, 0), strict=True):
        expected = pillow_result(png.getvalue(), view, len(found), Image.Resampling.BICUBIC)
        assert np.array_equal(found, expected)
    for row in (1, 2):
        assert not any(each.any() for each in decode.images_of_row(outs, row))
    assert all(each.any() for each in decode.images_of_row(outs, 3))
    assert open_decoder("bicubic", backend).decode_views([], [], outs, []) == []


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "bilinear-no-antialias"])
def test_crops_of_a_png_have_pillows_pixels(interpolation):
    rng = np.random.default_rng(5)
    decoder = open_decoder(interpolation)
    for height, width in [(90, 130), (7, 61), (1, 1), (300, 2)]:
        image = picture(rng, height, width)
        png = io.BytesIO()
        Image.fromarray(image).save(png, "PNG", compress_level=1)
        for size in (1, 24, 64):
            view = random_view(rng, height, width, size)
            found, reason = decode_one(decoder, png.getvalue(), view, size)
            assert reason is None
            assert np.array_equal(found, decode.scale_by_pillow(image, view, (size, size), interpolation))


@needs_extension
def test_the_extension_refuses_pixels_and_arrays_that_do_not_fit():
    from loaders.decode import _jpeg

    view, out = View(0, 0, 2, 3, 8, 8, 0, 0, False), np.zeros((8, 8, 3), np.uint8)
    right = (bytes(24), 2, 3, view, out, 1)
    _jpeg.scale_view(*right)
    for place, wrong in [(0, bytes(23)), (1, -2), (2, 4), (3, view._replace(left=1)), (4, out[..., :2].copy()), (5, 3)]:
        with pytest.raises(ValueError, match=r"must|inside"):
            _jpeg.scale_view(*right[:place], wrong, *right[place + 1 :])


def test_decoder_names_hold_everything_that_pixels_depend_on(monkeypatch):
    names = {open_decoder(each, "library").name for each in decode.FILTERS}
    assert len(names) == 3
    if extension_available():
        names |= {open_decoder(each).name for each in decode.FILTERS}
        assert len(names) == 6
        assert open_decoder().name.endswith("crop, bicubic antialiased v1")
        assert open_decoder().backend == "extension"
    monkeypatch.setitem(sys.modules, "loaders.decode._jpeg", None)
    monkeypatch.delattr("loaders.decode._jpeg", raising=False)
    assert not extension_available()
    decode._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert open_decoder(backend="library").backend == "library"
        assert not found
        for _ in range(2):
            assert open_decoder().name == open_decoder(backend="library").name
    decode._warn_once.cache_clear()
    (text,) = (str(each.message) for each in found)
    assert (
        "was not built; install a wheel of tpu-dataprep, which has it, or install a C compiler and the headers" in text
    )
    assert "or choose decoder='library'; until then simplejpeg decodes and torch scales" in text
    with pytest.raises(
        UsageError, match=r"^decoder 'extension': loaders\.decode\._jpeg was not built; install a wheel"
    ):
        open_decoder(backend="extension")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interpolation": "bicubi"}, "interpolation must be one of .*, got 'bicubi'; did you mean bicubic?"),
        ({"backend": "gpu"}, "decoder must be one of auto, extension, library, got 'gpu'"),
    ],
)
def test_unknown_names_list_the_known_ones(options, message):
    with pytest.raises(UsageError, match=message):
        open_decoder(**options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_patches_are_those_of_the_whole_scaled_view(backend):
    """The image is scaled as a square would be, and its patches follow each other from the token that is asked for."""
    rng = np.random.default_rng(5)
    decoder = open_decoder("bicubic", backend)
    for patch in (3, 16):
        for kind, data in jpegs(rng, 90, 120):
            rows, columns, start = (int(each) for each in rng.integers(1, 6, 3))
            view = View(7, 9, 70, 100, rows * patch, columns * patch, 0, 0, bool(rng.integers(2)))
            out = np.full((2, 40, 3 * patch**2), 7, np.uint8)
            assert decoder.decode_patches([data], [view], out, [40 + start]) == [None]
            flat = out.reshape(80, -1)
            used = flat[40 + start : 40 + start + rows * columns]
            image = decode.image_of_patches(used, columns)
            resampling = Image.Resampling.BICUBIC
            expected = pillow_result(data, view._replace(out_top=0), max(rows, columns) * patch, resampling)
            most = 0 if backend == "extension" else 2
            assert np.abs(image.astype(int) - expected.astype(int)).max() <= most, kind
            assert (np.delete(flat, range(40 + start, 40 + start + rows * columns), axis=0) == 7).all()
            cut = np.zeros_like(out)
            decode.cut_patches(image, cut, 40 + start)
            assert np.array_equal(cut.reshape(80, -1)[40 + start :][: rows * columns], used)


@pytest.mark.parametrize("backend", BACKENDS)
def test_patches_of_other_formats_are_decoded_and_those_of_damaged_files_are_black(backend):
    image = picture(np.random.default_rng(2), 40, 60)
    png = io.BytesIO()
    Image.fromarray(image).save(png, "PNG")
    view = View(0, 0, 40, 60, 32, 48, 0, 0, False)
    out = np.full((1, 12, 768), 7, np.uint8)
    good, bad = open_decoder("bicubic", backend).decode_patches(
        [png.getvalue(), b"\xff\xd8no\xff\xd9"], [view] * 2, out, [0, 6]
    )
    assert good is None
    assert "by Pillow" in bad
    expected = pillow_result(png.getvalue(), view, 48, Image.Resampling.BICUBIC)
    assert np.array_equal(decode.image_of_patches(out[0, :6], 3), expected)
    assert not out[0, 6:].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("flip", [False, True])
def test_a_letterbox_has_the_complete_image_in_its_middle(backend, flip):
    ((_, data), *_) = jpegs(np.random.default_rng(3), 61, 90)
    (view,) = letterbox_views(0, [0], [(61, 90)], size=48, flip=float(flip))
    out = np.full((3, 48, 48, 3), 7, np.uint8)
    found = open_decoder("bicubic", backend).decode_letterboxes([data, b"no image"], [view, view], out, [2, 0])
    assert (found[0], "by Pillow" in str(found[1])) == (None, True)
    assert (out[0] == 0).all()
    assert (out[1] == 7).all()
    scaled = Image.open(io.BytesIO(data)).convert("RGB").resize((48, 33), Image.Resampling.BICUBIC)
    row = Image.new("RGB", (48, 48))
    row.paste(scaled, (0, 7 if view.out_top == -7 else 8))
    expected = np.asarray(row)[:, ::-1] if flip else np.asarray(row)
    assert np.abs(out[2].astype(int) - expected).max() <= (0 if backend == "extension" else 2)


@needs_extension
def test_patches_outside_of_a_row_are_refused_by_the_extension():
    from loaders.decode import _jpeg

    data = by_pillow(picture(np.random.default_rng(2), 40, 60))
    good = [0, 0, 40, 60, 32, 48, 0, 0, 0]
    rows, columns, offset = [*good[:4], 33, *good[5:]], [*good[:4], 32, 0, 0, 0, 0], [*good[:6], 1, 0, 0]
    cases = [(good, 3, 16), (good, -1, 16), (good, 8, 16), (rows, 0, 16), (columns, 0, 16), (offset, 0, 16)]
    for view, start, patch in [*cases, (good, 0, 8), (good, 0, -16)]:
        out = np.zeros((1, 8, 768), np.uint8)
        with pytest.raises(ValueError, match=r"row of out|out must be uint8|patch must be 1"):
            _jpeg.decode_patches([data], np.array([view], np.int32), np.array([start], np.int32), out, 1, patch)


def height_of(data):
    return simplejpeg.decode_jpeg_header(data, strict=False)[0]


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_the_full_decode_in_every_form(seed):
    rng = np.random.default_rng(seed)
    shorter = 0
    for _ in range(4):
        height, width = (int(side) for side in rng.integers(20, 150, 2))
        for kind, data in jpegs(rng, height, width):
            full = simplejpeg.decode_jpeg(data)
            for rows in rng.integers(1, height + 1, 6).tolist():
                found = without_lower_rows(data, rows)
                image = simplejpeg.decode_jpeg(bytes(found), strict=False)
                assert rows <= len(image) <= height
                assert np.array_equal(image[:rows], full[:rows]), (kind, height, width, rows)
                shorter += len(image) < height
    assert shorter > 100


def test_only_the_height_in_the_header_changes_and_only_where_rows_are_saved():
    data = by_pillow(picture(np.random.default_rng(6), 120, 40))
    found = without_lower_rows(memoryview(data), 60)
    assert [at for at in range(len(data)) if data[at] != found[at]] == [data.index(b"\xff\xc0") + 6]
    assert (len(found), height_of(bytes(found))) == (len(data), 62)
    for rows in (103, 119, 120, 500):
        assert without_lower_rows(data, rows) is data
    assert height_of(bytes(without_lower_rows(data, 102))) == 104


def test_files_whose_rows_do_not_follow_each_other_stay_as_they_are():
    image = picture(np.random.default_rng(7), 120, 40)
    good = by_pillow(image)
    frame, scan = good.index(b"\xff\xc0"), good.index(b"\xff\xda")
    one_component = good[: scan + 4] + b"\x01" + good[scan + 5 :]
    twice = good[:frame] + good[frame : frame + 19] + good[frame:]
    odd = [
        by_pillow(image, progressive=True),
        one_component,
        twice,
        b"",
        b"\xff\xd8",
        b"GIF89a" + bytes(90),
        good[:300],
    ]
    odd += [good[:frame] + b"\xff" + good[frame:], good[:frame] + b"\x00" + good[frame:], good[: scan + 3]]
    for data in odd:
        assert without_lower_rows(data, 10) is data
    assert without_lower_rows(without(good, HUFFMAN_TABLES), 10) != good
