"""The report in a real browser: readable at both widths, light and dark, and nothing is fetched."""

import html
import json
import re
from dataclasses import replace

import pytest
from PIL import Image

from loaders.diagnosis.report import diagnosis_page
from tests.support.browser import CHROMIUM, NO_CHROMIUM, browse
from tests.support.findings import diagnosis

WIDTHS = (1280, 390)
SMALLEST_TEXT_PX = 11
LEAST_CONTRAST = 4.5
"""WCAG 2, level AA, for text of ordinary size."""

OUTSIDE = '<link rel="stylesheet" href="https://fonts.invalid/1.css"><img src="http://pictures.invalid/1.png">'

# Reads every frame of the page it stands in: a frame can be as narrow as a phone, a window cannot.
MEASURE = """
const channels = colour => colour.match(/[\\d.]+/g).map(Number);
const linear = share => share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
const luminance = colour => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => sum + part * linear(colour[i] / 255), 0);
function behind(element, style) {
  for (; element; element = element.parentElement) {
    const colour = channels(style(element).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
}
function contrast(element, style) {
  const colours = [channels(style(element).color), behind(element, style)];
  const [low, high] = colours.map(luminance).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}
function measure(frame) {
  const view = frame.contentWindow, root = frame.contentDocument, style = element => view.getComputedStyle(element);
  const isText = node => node.nodeType === 3 && node.data.trim();
  const texts = [...root.body.querySelectorAll("*")].filter(
    each => [...each.childNodes].some(isText) && each.getClientRects().length);
  const boxes = selector => [...root.querySelectorAll(selector)].map(each => each.getBoundingClientRect().toJSON());
  return {
    inner_width: view.innerWidth,
    scroll_width: root.documentElement.scrollWidth,
    outside: texts.filter(each => each.getBoundingClientRect().right > view.innerWidth + 1).map(each => each.innerText),
    smallest_text_px: Math.min(...texts.map(each => parseFloat(style(each).fontSize))),
    least_contrast: Math.min(...texts.map(each => contrast(each, style))),
    stages: boxes(".flow li"),
    plots: boxes(".chart"),
    background: style(root.body).backgroundColor,
  };
}
addEventListener("load", () => {
  const found = Object.fromEntries([...document.querySelectorAll("iframe")].map(each => [each.id, measure(each)]));
  document.getElementById("found").textContent = JSON.stringify(found);
});
"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


@pytest.fixture(scope="module")
def pages():
    """By name; `ragged` is what the others must not be, for whoever doubts the measuring."""
    url = "gs://a-bucket-with-a-long-name/" + "and_a_folder_without_any_place_to_break" * 4
    settings = {"transform": "a.module.with.a.long.name:" + "And" * 30}
    long = replace(
        diagnosis(), url=url, device="d" * 120, settings=settings, verdict=f"You wait for {url}: change that."
    )
    page = diagnosis_page(diagnosis())
    bad = '<p style="width: 2000px; font-size: 9px; color: #888; background: #999">x</p></main>'
    return {"diagnosis": page, "long": diagnosis_page(long), "ragged": page.replace("</main>", bad)}


@pytest.fixture(scope="module", params=["light", "dark"])
def measured(request, pages, tmp_path_factory):
    """Figures of every page at every width, as `page-width`."""
    folder = tmp_path_factory.mktemp("browser")
    frames = [
        f'<iframe id="{name}-{width}" width="{width}" height="9000" style="border: 0" srcdoc="{html.escape(page)}">'
        "</iframe>"
        for name, page in pages.items()
        for width in WIDTHS
    ]
    path = folder / "frames.html"
    path.write_text(f"<!DOCTYPE html><pre id='found'></pre>{''.join(frames)}<script>{MEASURE}</script>", "utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if request.param == "dark" else []
    dumped = browse(folder, *scheme, "--dump-dom", path.as_uri())
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dumped, re.DOTALL)[1]))
    assert found["diagnosis-1280"]["background"] == ("rgb(17, 20, 26)" if scheme else "rgb(246, 247, 249)")
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["diagnosis", "long"])
def test_pages_are_readable_at_every_width_in_light_and_dark(measured, name, width):
    found = measured[f"{name}-{width}"]
    assert found["inner_width"] == width
    assert found["scroll_width"] <= width
    assert found["outside"] == []
    assert found["smallest_text_px"] >= SMALLEST_TEXT_PX
    assert found["least_contrast"] >= LEAST_CONTRAST
    assert all(plot["height"] >= 100 and plot["width"] >= 250 for plot in found["plots"])
    assert len(found["plots"]) == {"diagnosis": 2, "long": 2}[name]


def test_stages_are_shown_in_a_row_or_in_a_column(measured):
    wide, narrow = measured["diagnosis-1280"]["stages"], measured["diagnosis-390"]["stages"]
    assert len(wide) == len(narrow) == 4
    assert len({stage["top"] for stage in wide}) == 1
    assert [stage["left"] for stage in wide] == sorted({stage["left"] for stage in wide})
    assert len({stage["left"] for stage in narrow}) == 1
    assert [stage["top"] for stage in narrow] == sorted({stage["top"] for stage in narrow})


def pictured(folder, page):
    """A picture of a page, and the addresses that it made the browser ask for."""
    path, picture, log = (folder / name for name in ("page.html", "page.png", "network.json"))
    path.write_text(page, encoding="utf-8")
    browse(folder, "--window-size=1280,1800", f"--log-net-log={log}", f"--screenshot={picture}", path.as_uri())
    with Image.open(picture) as image:
        return image.convert("RGB"), asked_by_a_page(json.loads(log.read_text()))


def asked_by_a_page(log):
    """Addresses in a network log without the browser's own, such as those of its updates."""
    start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = [event["params"] for event in log["events"] if event["type"] == start and "url" in event.get("params", ())]
    return [each["url"] for each in asked if each["initiator"] != "not an origin"]


def test_a_page_fetches_nothing(pages, tmp_path):
    picture, asked = pictured(tmp_path, pages["diagnosis"])
    colours = {colour for _, colour in picture.getcolors(maxcolors=2**24)}
    assert {(47, 111, 222), (173, 87, 0), (221, 90, 43)} <= colours, "bars, the limit and the waits are not drawn"
    assert asked == []
