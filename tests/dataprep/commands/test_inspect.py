"""`dataprep inspect`: a dataset as text and as JSON, and what it refuses."""

import base64
import hashlib
import io
import json
import re
from dataclasses import replace

import pytest
from PIL import Image

from dataprep.builder.finished import readable_manifest
from dataprep.builder.images import ImagePolicy
from dataprep.commands.inspect import class_caption, command, render_html
from dataprep.dataset.records import Event
from dataprep.errors import UsageError
from dataprep.inspection.contact_sheet import Picture, Sheet, open_sheet
from dataprep.inspection.inspect import ClassSpread, Spread, Trouble, inspect_dataset
from dataprep.storage import open_storage
from tests.support.adoption import adopt_here
from tests.support.builds import dataprep, printed, succeeds
from tests.support.fetched import FAULTS
from tests.support.own_data import annotated, build_own, class_folders, picture, write_files
from tests.support.pages import HOSTILE, OUTSIDE, Page


def inspected(*words: object) -> str:
    return printed(command, *words)


def test_numbers_bars_and_troubles_are_printed(finished):
    shown = inspected(finished("imagenet-webdataset"))
    for text in ("imagenet · webdataset", "about 4:3", "█", "rejected: ", " classes of "):
        assert text in shown
    train, _ = inspect_dataset(str(finished("imagenet-webdataset"))).splits
    assert f"{train.samples:,} in {train.shards} shards" in shown
    for trouble in train.troubles:
        assert f"{trouble.kind}: {trouble.count:,} {trouble.reason}" in shown


def test_every_bin_that_is_not_empty_has_a_bar(finished):
    shown = inspected(finished("imagenet-webdataset"), "--split", "train")
    bars = re.findall(r"^ +\S.*?  +([█▏▎▍▌▋▊▉]*) +(\d[\d,]*) +\d+\.\d % *$", shown, re.MULTILINE)
    (train,) = inspect_dataset(str(finished("imagenet-webdataset")), "train").splits
    counts = [count for bins in (train.widths, train.heights, train.aspects, train.sizes) for count in bins.counts]
    assert [int(count.replace(",", "")) for _, count in bars] == counts
    assert [bool(bar) for bar, _ in bars] == [count > 0 for count in counts]
    assert max(len(bar) for bar, _ in bars) == 24


def test_json_has_the_chosen_split(finished):
    (split,) = json.loads(inspected(finished("imagenet-webdataset"), "--json", "--split", "val"))["splits"]
    assert (split["name"], sum(split["aspects"]["counts"])) == ("val", split["samples"])


def test_the_help_says_what_is_listed_of_a_rejected_image(tmp_path):
    files = {f"cats/{number}.jpg": picture(number) for number in range(4)}
    source = write_files(tmp_path / "in", files | {"cats/my bad.jpg": b"<html>"})
    words = ("build", "folder", "--source", source, "--output", tmp_path / "out", "--format", "webdataset")
    detail = "no image: cannot identify image file"
    assert dataprep(*words, "--workers", 1).returncode == 1
    listed = inspected(tmp_path / "out", "--rejected").rstrip("\n").split("\t")
    assert listed == ["train", "rejected", "undecodable", "cats/my=20bad", "cats/my bad.jpg", detail]
    assert dataprep(*words, "--workers", 1, "--max-reject-ratio", 0.5).returncode == 0
    listed = inspected(tmp_path / "out", "--rejected").rstrip("\n").split("\t")
    assert listed == ["train", "rejected", "undecodable", "cats/my=20bad", "cats/my bad", detail]
    words = " ".join(inspected("--help").split())
    assert (
        "split, status, reason and key, then the row's URL, or the image's path and problem. A "
        "finished dataset no longer has the paths, and shows the keys as text."
    ) in words


def test_a_page_that_cannot_be_written_ends_it_in_one_line(finished, tmp_path):
    run = dataprep("inspect", finished("imagenet-webdataset"), "--html", tmp_path / "no/such/folder.html")
    assert (run.returncode, "cannot be written (No such file or directory)" in run.stderr) == (2, True)
    assert (run.stdout, run.stderr.count("\n")) == ("", 1)


def test_examples_of_a_trouble_end_with_the_number_and_the_place_of_the_others(tmp_path):
    write_files(tmp_path / "in", {f"{number}.png": picture(number, "PNG") for number in range(5)})
    words = ("--source", tmp_path / "in", "--output", tmp_path / "out", "--format", "webdataset", "--workers", 1)
    assert dataprep("build", "folder", *words).returncode == 0
    shown = inspected(tmp_path / "out")
    assert "repaired: 5 png" in shown
    assert "and 2 more: index/train-events.parquet" in shown
    assert re.search(r"5 in 1 shard *$", shown, re.MULTILINE) and "1 pass, 1 stored" in shown


@pytest.fixture(scope="module")
def leaking(tmp_path_factory):
    """A dataset of which 2 images of val are in train as well, and one of train is there twice."""
    folder = tmp_path_factory.mktemp("leaking")
    same = {"train/1.jpg": 1, "train/2.jpg": 2, "train/3.jpg": 3, "train/again.jpg": 3}
    other = {"val/1.jpg": 1, "val/copy.jpg": 2, "val/4.jpg": 4}
    write_files(folder / "in", {name: picture(number) for name, number in (same | other).items()})
    build_own(folder / "in", folder / "out")
    return folder / "out"


def test_images_of_two_splits_are_named_in_text_json_and_page(leaking, tmp_path):
    lines = inspected(leaking).splitlines()
    [line] = [line for line in lines if "also in" in line]
    assert line.startswith("2 images of val are also in train: ")
    assert sorted(line.partition(": ")[2].split(", ")) == ["1", "copy (there 2)"]
    [shared] = json.loads(inspected(leaking, "--json"))["shared"]
    assert (shared["split"], shared["other"], shared["count"]) == ("val", "train", 2)
    assert sorted(shared["examples"]) == [["1", "1"], ["copy", "2"]]
    inspected(leaking, "--html", tmp_path / "page.html")
    assert f"<li>{line}</li>" in (tmp_path / "page.html").read_text()
    alone = json.loads(inspected(leaking, "--json", "--split", "val"))
    assert alone["shared"] == []


def test_duplicates_of_each_split_are_counted_in_text_and_json(leaking):
    lines = [" ".join(line.split()) for line in inspected(leaking).splitlines() if line.startswith("  duplicates ")]
    assert lines == [
        "duplicates 1 among all 4 images (same size and CRC32C as an earlier image)",
        "duplicates none among all 3 images",
    ]
    splits = json.loads(inspected(leaking, "--json"))["splits"]
    assert [(split["compared"], split["duplicates"]) for split in splits] == [(4, 1), (3, 0)]


def test_of_adopted_data_nothing_is_said_that_was_not_looked_for(tmp_path):
    adopt_here(class_folders(tmp_path / "data"))
    shown = inspected(tmp_path / "data")
    assert re.search(r"^  duplicates +not looked for: the index has no checksums", shown, re.MULTILINE)
    assert re.search(r"licence +unknown, not stated *\n", shown)
    assert re.search(r"classes .*: .*", shown) and "fewest" not in shown
    document = json.loads(inspected(tmp_path / "data", "--json"))
    assert [(split["compared"], split["duplicates"]) for split in document["splits"]] == [(0, 0)] * 2
    assert document["shared"] == []
    inspection = inspect_dataset(str(tmp_path / "data"))
    html = render_html(inspection, {split.name: Sheet() for split in inspection.splits})
    assert html.count("Not looked for: adopted data are not decoded.") == 2
    assert "every image was copied as it is" not in html and "<dt>Codecs</dt>" not in html


def test_a_name_is_shown_as_it_was_written_and_json_has_the_key_and_the_path(tmp_path):
    write_files(tmp_path / "in", {"süß 1.png": picture(1, "PNG")})
    words = ("--source", tmp_path / "in", "--output", tmp_path / "out", "--format", "webdataset", "--workers", 1)
    assert dataprep("build", "folder", *words).returncode == 0
    assert re.search(r"^ +süß 1 ", inspected(tmp_path / "out"), re.MULTILINE)
    (split,) = json.loads(inspected(tmp_path / "out", "--json"))["splits"]
    [[event]] = [trouble["examples"] for trouble in split["troubles"]]
    assert (event["key"], event["path"]) == ("s=C3=BC=C3=9F=201", "süß 1")


def test_lines_that_go_to_a_file_are_neither_wrapped_nor_end_with_spaces(tmp_path):
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    adopt_here(class_folders(folder))
    lines = inspected(folder).splitlines()
    assert [line.split() for line in lines if line.startswith("  at ")] == [["at", str(folder)]]
    assert [line for line in lines if line != line.rstrip()] == []


def test_rejected_rows_are_lines_or_entries_of_one_object(fetched):
    url = fetched("webdataset")
    lines = inspected(url, "--rejected").splitlines()
    assert len(lines) == len(FAULTS)
    assert re.fullmatch(r"train\tfailed to download\thttp 503\t000002\thttp://127\.0\.0\.1:\d+/2\.jpg", lines[0])
    found = json.loads(inspected(url, "--rejected", "--json"))
    assert (found["url"], len(found["rejected"])) == (str(url), len(FAULTS))
    assert found["rejected"][0].keys() == {"split", "key", "status", "reason", "origin", "detail"}


def test_a_dataset_without_rejected_images_has_an_empty_list(finished):
    url = finished("imagenet-webdataset")
    assert (inspected(url, "--rejected", "--split", "val") == "") == (
        json.loads(inspected(url, "--rejected", "--split", "val", "--json"))["rejected"] == []
    )
    with pytest.raises(UsageError, match="--rejected with --html"):
        inspected(url, "--rejected", "--html", "page.html")


@pytest.fixture
def inspection(finished):
    return inspect_dataset(str(finished("imagenet-webdataset")), "train")


@pytest.fixture(scope="module")
def page_of(finished, tmp_path_factory):
    """The page that the command writes, parsed, and its text."""
    path = tmp_path_factory.mktemp("html") / "page.html"
    succeeds("inspect", finished("imagenet-webdataset"), "--html", path)
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
    sheet = Sheet(
        spread=((picture, (picture,)),),
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
        html = render_html(replace(inspection, partial=partial), {"train": Sheet()})
        assert text in html
        assert "<dt>Codecs</dt><dd>pillow " in html and "adopted data" not in html


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
