"""The site in a real browser, at the widths of a phone and a desk, light and dark, without a network."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from loaders.diagnosis.report import diagnosis_page
from tests.support.findings import diagnosis
from tests.support.markdown import ROOT

SITE = ROOT / "build/site"
WIDTHS = (390, 1280)
TABLES = "benchmarks/README.html"
"""The page with the widest tables."""
PAGES = ("index.html", "docs/reference/api/loaders.html", "docs/reference/commands/build.html", TABLES)
SERIOUS = ("serious", "critical")
WAIT_MS = 60_000


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site's address on loopback."""
    assert (SITE / "index.html").exists(), "run make site first"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's Chromium, whose proxy is a port that nobody serves: it reaches loopback alone."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert chromium, "Chromium is not installed; Debian: apt-get install chromium"
    with sync_playwright() as playwright:
        quiet = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        proxy = {"server": "http://127.0.0.1:9", "bypass": "127.0.0.1"}
        with playwright.chromium.launch(executable_path=chromium, args=quiet, proxy=proxy) as launched:
            yield launched


class Watched:
    """A page, what it asked for, and what it complained of."""

    def __init__(self, browser: Browser, *, width: int = 1280, dark: bool = False) -> None:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(WAIT_MS)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def elsewhere(self, address: str) -> list[str]:
        """List the addresses that the page asked for and that are not the site's."""
        return [url for url in self.asked if not url.startswith((address, "data:", "blob:"))]

    def close(self) -> None:
        """End the page."""
        self.page.context.close()


def page_names() -> list[str]:
    """Return the names of all pages but copies and those without a text of their own."""
    names = (path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    return sorted(name for name in names if name not in ("README.html", "search.html", "genindex.html"))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_window_nor_asks_another_host_nor_complains(browser, address, width):
    watched = Watched(browser, width=width)
    wide = []
    for name in page_names():
        watched.page.goto(f"{address}/{name}")
        if watched.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(name)
    watched.close()
    assert (wide, watched.elsewhere(address), watched.complaints) == ([], [], [])


def test_wide_tables_scroll_in_boxes_that_the_keyboard_reaches(browser, address):
    watched = Watched(browser, width=390)
    watched.page.goto(f"{address}/{TABLES}")
    found = watched.page.evaluate(
        """[...document.querySelectorAll(".table-wrapper")].filter(box => box.scrollWidth > box.clientWidth)
           .map(box => [getComputedStyle(box).overflowX, box.tabIndex])"""
    )
    watched.close()
    assert found
    assert set(map(tuple, found)) == {("auto", 0)}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_no_serious_fault_of_contrast_names_or_keyboard(browser, address, name, width, dark):
    watched = Watched(browser, width=width, dark=dark)
    watched.page.goto(f"{address}/{name}")
    background = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
    found = faults(watched.page)
    watched.close()
    assert (background == "rgb(255, 255, 255)") != dark
    assert found == []


def faults(page: Page) -> list[str]:
    """List what axe-core finds that is serious or critical."""
    violations = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in violations if each["impact"] in SERIOUS]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_diagnosis_has_no_serious_fault(browser, width):
    watched = Watched(browser, width=width)
    watched.page.set_content(diagnosis_page(diagnosis()))
    found = faults(watched.page)
    watched.close()
    assert found == []


@pytest.mark.parametrize("width", WIDTHS)
def test_search_finds_pages_without_a_network(browser, address, width):
    watched = Watched(browser, width=width)
    watched.page.goto(f"{address}/search.html?q=open_loader")
    for page in ("docs/reference/api/loaders.html", "docs/loaders.html"):  # the results come one after another
        watched.page.wait_for_selector(f'ul.search li a[href*="{page}"]')
    watched.close()
    assert (watched.elsewhere(address), watched.complaints) == ([], [])


@pytest.mark.parametrize("width", WIDTHS)
def test_the_keyboard_reaches_a_link_of_every_page_part_and_its_focus_is_seen(browser, address, width):
    watched = Watched(browser, width=width)
    watched.page.goto(f"{address}/index.html")
    watched.page.keyboard.press("Tab")
    first = watched.page.evaluate("document.activeElement.textContent.trim()")
    watched.page.keyboard.press("Enter")
    where = watched.page.evaluate("location.hash")
    watched.close()
    assert (first, where) == ("Skip to content", "#furo-main-content")


def test_a_file_opened_without_a_server_is_whole(browser):
    watched = Watched(browser, width=390)
    watched.page.goto((SITE / "index.html").as_uri())
    watched.page.goto(f"{(SITE / 'search.html').as_uri()}?q=verify")
    watched.page.wait_for_selector("ul.search li a")
    asked = {Path(url.partition("?")[0].removeprefix("file://")) for url in watched.asked}
    watched.close()
    assert all(path.is_relative_to(SITE) for path in asked)
