import base64
import hashlib
import io
import re
from dataclasses import replace

import pytest
from PIL import Image

from dataprep.builder.finished import readable_manifest
from dataprep.builder.images import ImagePolicy
from dataprep.commands.inspect_html import class_caption, render_html
from dataprep.dataset.records import Event
from dataprep.inspection.contact_sheet import Picture, Sheet, open_sheet
from dataprep.inspection.histograms import Spread
from dataprep.inspection.inspect import ClassSpread, Trouble, inspect_dataset
from dataprep.inspection.oddities import Oddities
from dataprep.storage import open_storage
from tests.support.adoption import adopt_here
from tests.support.builds import dataprep
from tests.support.own_data import annotated, build_own, class_folders, picture, write_files
from tests.support.pages import HOSTILE, OUTSIDE, Page


@pytest.fixture
def inspection(finished):
    return inspect_dataset(str(finished("imagenet-webdataset")), "train")


@pytest.fixture(scope="module")
def page_of(finished, tmp_path_factory):
    """The page that the command writes, parsed, and its text."""
    path = tmp_path_factory.mktemp("html") / "page.html"
    run = dataprep("inspect", finished("imagenet-webdataset"), "--html", path)
    assert run.returncode == 0, run.stderr
    html = path.read_text()
    return Page(html), html


def test_the_page_fetches_nothing_and_runs_only_its_own_script(page_of):
    page, html = page_of
    [script] = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\"" in html
    assert not re.search(r"innerHTML|eval|fetch|import|document\.write", script)
    assert {"iframe", "object", "embed", "link", "base", "form"}.isdisjoint(page.tags)
    assert [value for name, value in page.attributes if value and name != "src" and OUTSIDE.search(value)] == []
    sources = [value for name, value in page.attributes if name == "src"]
    assert sources
    assert all(re.fullmatch(r"data:image/jpeg;base64,[A-Za-z0-9+/]+=*", source) for source in sources)
    assert [name for name, _ in page.attributes if name.startswith("on")] == []
    assert not re.search(r"@import|url\(", "".join(page.styles))
    links = [value for name, value in page.attributes if name in ("href", "xlink:href")]
    assert all(link.startswith("#") for link in links)


def test_the_page_shows_numbers_plots_and_pictures(page_of, finished):
    page, html = page_of
    inspection = inspect_dataset(str(finished("imagenet-webdataset")))
    texts = {text.strip() for text in page.texts}
    assert {f"{split.samples:,}" for split in inspection.splits} <= texts
    kinds = [value for name, value in page.attributes if name == "class" and (value or "").startswith("chart ")]
    assert kinds == ["chart histogram"] * 5 * len(inspection.splits)
    assert {"Width, pixels", "Aspect, width to height", "Images of a class", inspection.licence} <= texts
    pictures = [value.partition(",")[2] for name, value in page.attributes if name == "src"]
    assert page.tags.count("details") == sum(min(48, split.samples) for split in inspection.splits)
    with Image.open(io.BytesIO(base64.b64decode(pictures[0]))) as image:
        assert max(image.size) <= 224
    assert "prefers-color-scheme: dark" in html
    assert len(html) < 4_000_000


def test_hostile_texts_are_escaped(inspection):
    split = inspection.splits[0]
    event = Event(HOSTILE, "rejected", HOSTILE, HOSTILE)
    classes = ClassSpread(classes=1, samples=Spread(1, 1, 1), fewest=((HOSTILE, 1),), most=((HOSTILE, 1),), counts=(1,))
    trouble = Trouble(kind="rejected", reason=HOSTILE, count=1, examples=(event,))
    split = replace(split, name=HOSTILE, classes=classes, troubles=(trouble,))
    hostile = replace(
        inspection, url=HOSTILE, licence=HOSTILE, origin=HOSTILE, codecs={HOSTILE: HOSTILE}, splits=(split,)
    )
    picture = Picture(key=HOSTILE, class_name=HOSTILE, jpeg=b"", problem=HOSTILE, caption=HOSTILE)
    found = Oddities(looked_at=1, is_partial=False, duplicates=1, groups=(), extremes={})
    sheet = Sheet(
        spread=((picture, (picture,)),),
        oddities=found,
        duplicates=((picture, picture),),
        extremes=((HOSTILE, (picture,)),),
        classes=((HOSTILE, 1),),
    )
    html = render_html(hostile, {HOSTILE: sheet})
    assert html.count("<script") == 1
    page = Page(html)
    assert "img" not in page.tags
    assert [name for name, _ in page.attributes if name.startswith("on")] == []
    assert ("title", HOSTILE) in page.attributes
    assert sum(HOSTILE in text for text in page.texts) >= 9


def test_the_same_dataset_gives_the_same_page(inspection):
    assert render_html(inspection, {"train": Sheet()}) == render_html(inspection, {"train": Sheet()})


@pytest.mark.parametrize("fmt", ["webdataset", "imagefolder"])
def test_a_users_own_data_have_captions_and_no_published_counts(tmp_path, fmt):
    build_own(annotated(tmp_path / "pets"), tmp_path / "out", fmt)
    storage = open_storage(str(tmp_path / "out"))
    manifest = readable_manifest(storage)
    inspection = inspect_dataset(storage.url)
    texts = Page(render_html(inspection, {"train": open_sheet(storage, manifest, manifest.splits[0])})).texts
    assert not any("published" in text for text in texts)
    assert "a cat on a mat" in [text.strip() for text in texts]
    assert not inspection.is_published


def test_a_published_dataset_says_that_its_counts_are_the_published_ones(inspection):
    assert inspection.is_published
    for partial, text in ((True, "partial: other counts than published"), (False, "the published counts")):
        assert text in render_html(replace(inspection, partial=partial), {"train": Sheet()})


def test_features_have_one_label_and_pictures_of_all_shapes_are_shown_whole(inspection):
    html = render_html(replace(inspection, features={"caption": "text", "n": "int64"}), {"train": Sheet()})
    assert "<dt>Features</dt><dd>caption (text), n (int64)</dd>" in html
    assert ".sheet img { position: absolute; inset: 0; width: 100%; height: 100%; object-fit: contain; }" in html


@pytest.mark.parametrize(
    ("classes", "each"), [(1, ""), (2, "c0 1, c1 2"), (6, "c4 5, c5 6"), (7, "most: c6 7, c5 6, c4 5")]
)
def test_few_classes_are_named_once(inspection, classes, each):
    ranked = tuple((f"c{number}", 1 + number) for number in range(classes))
    spread = ClassSpread(
        classes=classes, samples=Spread(1, 1, classes), fewest=ranked[:3], most=ranked[:-4:-1], counts=()
    )
    caption = class_caption(replace(inspection.splits[0], classes=spread))
    assert caption.endswith(each) and caption.count("c0 1") == 1
    assert ("fewest" in caption) == (classes > 6)


@pytest.mark.parametrize(("classes", "kind"), [(1, "histogram"), (12, "histogram"), (13, "area"), (1000, "area")])
def test_few_classes_have_bars_with_their_names_and_many_an_area(inspection, classes, kind):
    named = tuple((f"{'long ' * 9}{number}", 1 + number) for number in range(classes))
    counts = tuple(count for _, count in named[::-1])
    ends = {"fewest": named[:3], "most": named[:-4:-1], "samples": Spread(1, counts[classes // 2], classes)}
    split = replace(inspection.splits[0], classes=ClassSpread(classes=classes, counts=counts, **ends))
    page = Page(render_html(replace(inspection, splits=(split,)), {"train": Sheet(classes=named)}))
    kinds = [value for name, value in page.attributes if name == "class" and (value or "").startswith("chart ")]
    assert kinds[-1] == f"chart {kind}"
    assert ("long long long long l..." in [text.strip() for text in page.texts]) == (kind == "histogram")


def test_a_split_without_classes_sides_or_troubles_has_a_page(finished):
    inspection = inspect_dataset(str(finished("coco-links")))
    split = replace(inspection.splits[0], width=None, height=None, troubles=())
    html = render_html(replace(inspection, splits=(split,), checked="none"), {"train": Sheet()})
    assert "every image was copied as it is" in html
    assert "images not checked" in html
    assert html.count('class="chart ') == 1


def test_of_adopted_data_nothing_is_said_that_was_not_looked_for(tmp_path):
    adopt_here(class_folders(tmp_path / "data"))
    inspection = inspect_dataset(str(tmp_path / "data"))
    html = render_html(inspection, {split.name: Sheet() for split in inspection.splits})
    assert html.count("Not looked for: adopted data are not decoded.") == 2
    assert "every image was copied as it is" not in html and "<dt>Codecs</dt>" not in html


def test_a_built_dataset_names_its_codecs(inspection):
    html = render_html(inspection, {"train": Sheet()})
    assert "<dt>Codecs</dt><dd>pillow " in html and "adopted data" not in html


def test_names_are_shown_as_people_wrote_them_and_the_key_beside(tmp_path):
    files = {"cats/süß 1.png": picture(1, "PNG"), "dogs/Bjørn.jpg": picture(2)}
    build_own(write_files(tmp_path / "in", files), tmp_path / "out", options={"images": ImagePolicy()})
    storage = open_storage(str(tmp_path / "out"))
    manifest = readable_manifest(storage)
    sheet = open_sheet(storage, manifest, manifest.splits[0])
    page = Page(render_html(inspect_dataset(storage.url), {"train": sheet}))
    assert {"süß 1", "Bjørn", "cats/süß 1"} <= {text.strip() for text in page.texts}
    assert not [text for text in page.texts if "=C3" in text]
    assert ("alt", "dogs/Bjørn") in page.attributes
    assert ("title", "dogs/Bjørn, key dogs/Bj=C3=B8rn") in page.attributes
