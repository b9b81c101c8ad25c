"""The classes of an inspection in a real browser: searched and sorted, with hostile names as texts."""

import html
import json
import re
from dataclasses import replace

import pytest

from dataprep.builder.finished import readable_manifest
from dataprep.commands.inspect import render_html
from dataprep.inspection.contact_sheet import Sheet, open_sheet
from dataprep.inspection.inspect import inspect_dataset
from dataprep.storage import open_storage
from tests.support.browser import CHROMIUM, NO_CHROMIUM, browse
from tests.support.pages import HOSTILE

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

CLASSES = (("cat 10", 5), ("cat 9", 1200), (HOSTILE, 7), ("dog", 7))
DRIVE = """
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument, found = {};
  const part = page.querySelector(".classes"), input = part.querySelector("input");
  const rows = () => [...part.querySelectorAll("tbody tr")].filter(row => !row.hidden);
  const shown = () => rows().map(row => row.cells[0].textContent);
  found.first = shown();
  input.value = " CAT ";
  input.dispatchEvent(new Event("input"));
  found.searched = shown();
  found.counted = part.querySelector("output").textContent;
  input.value = "";
  input.dispatchEvent(new Event("input"));
  const [name, count] = part.querySelectorAll("th button");
  name.click();
  found.by_name = shown();
  count.click();
  found.by_count = shown();
  found.sorted = [...part.querySelectorAll("th")].map(head => head.getAttribute("aria-sort"));
  found.is_focusable = [name, input, page.querySelector("summary")].map(each => {
    each.focus();
    return page.activeElement === each;
  });
  page.querySelector("details").open = true;
  found.near = page.querySelectorAll("details[open] .near li").length;
  const row = page.querySelector("details").closest("li").getBoundingClientRect();
  found.is_wide = row.width > 0.9 * page.querySelector("main").clientWidth - 40;
  found.scroll_width = page.documentElement.scrollWidth;
  document.getElementById("found").textContent = JSON.stringify(found);
});
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_classes_are_searched_and_sorted_and_pictures_opened(finished, tmp_path, width):
    storage = open_storage(str(finished("imagenet-webdataset")))
    manifest = readable_manifest(storage)
    sheet = replace(open_sheet(storage, manifest, manifest.splits[0]), classes=CLASSES)
    page = render_html(inspect_dataset(storage.url, "train"), {"train": sheet})
    frame = f'<iframe width="{width}" height="9000" style="border: 0" srcdoc="{html.escape(page)}"></iframe>'
    path = tmp_path / "frame.html"
    path.write_text(f"<!DOCTYPE html><pre id='found'></pre>{frame}<script>{DRIVE}</script>", "utf-8")
    dumped = browse(tmp_path, "--dump-dom", path.as_uri())
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dumped, re.DOTALL)[1]))
    assert found["first"] == ["cat 9", HOSTILE, "dog", "cat 10"]
    assert (found["searched"], found["counted"]) == (["cat 9", "cat 10"], "2 of 4")
    assert [name for name in found["by_name"] if name != HOSTILE] == ["cat 9", "cat 10", "dog"]
    assert [name for name in found["by_count"] if name != HOSTILE] == ["cat 10", "dog", "cat 9"]
    assert found["sorted"] == [None, "ascending"]
    assert found["is_focusable"] == [True, True, True]
    assert found["near"] == len(sheet.spread[0][1]) > 3
    assert found["is_wide"]
    assert found["scroll_width"] <= width


def test_a_page_without_classes_has_no_search(finished):
    page = render_html(inspect_dataset(str(finished("coco-links"))), {"train": Sheet()})
    assert '<div class="classes">' not in page
