"""Demo images: sizes and bytes like ImageNet's, from photographs that must be installed."""

import io
from collections import Counter

import pytest
from PIL import Image

from dataprep.builder.images import ImagePolicy, check_image
from dataprep.dataset.records import Event
from dataprep.demo.images import ODDITIES, DemoImage, make_image
from dataprep.demo.make import write_demo
from dataprep.errors import UsageError
from tests.dataprep.demo.conftest import images_of


@pytest.mark.long
def test_sizes_are_like_those_of_imagenet(monkeypatch, picture_sizes):
    monkeypatch.setattr("dataprep.demo.images._SIZES", picture_sizes)
    made = [make_image(DemoImage("imagenet", 0, index, index)) for index in range(200)]
    mean_bytes = sum(len(image.file) for image in made) / len(made)
    assert 95_000 < mean_bytes < 125_000
    assert 440 < sum(image.width for image in made) / len(made) < 500
    assert 370 < sum(image.height for image in made) / len(made) < 430
    assert len({image.file for image in made}) == len(made)
    with Image.open(io.BytesIO(made[0].file)) as image:
        assert image.size == (made[0].width, made[0].height)


def test_an_image_depends_on_its_description_alone():
    image = DemoImage("imagenet", 0, 7, 7)
    assert make_image(image).file == make_image(image).file
    assert make_image(DemoImage("imagenet", 1, 7, 7)).file != make_image(image).file


def test_missing_photographs_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.demo.images.find_spec", lambda package: None)
    with pytest.raises(
        UsageError, match=r"skimage/data/astronaut\.png was not found: pip install 'tpu-dataprep\[demo\]'"
    ):
        write_demo("coco", tmp_path, images=24, odd=False)


def test_odd_files_are_treated_as_the_report_says(demo):
    report, folder = demo
    images = images_of(report, folder)
    assert Counter(odd.oddity for odd in report.odd) == Counter(list(ODDITIES))
    expected = {odd.key: (odd.oddity, odd.verdict, odd.reason) for odd in report.odd}
    for key, image in images.items():
        oddity, verdict, reason = expected.get(key, ("plain", "kept", ""))
        checked = check_image(key, image, ImagePolicy())
        event = checked if isinstance(checked, Event) else checked.event
        found = ("kept", "") if event is None else (event.kind, event.reason)
        assert found == (verdict, reason), f"{oddity}: {event}"


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_orientations_are_recorded(demo, orientation):
    report, folder = demo
    key = next(odd.key for odd in report.odd if odd.oddity == f"exif-{orientation}")
    checked = check_image(key, images_of(report, folder)[key], ImagePolicy())
    assert checked.orientation == orientation
