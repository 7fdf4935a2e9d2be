"""The pages in other themes of the admin: they can be used and read, in light and dark, on a wide and a narrow screen.

The themes are in the dependency group `themes`. A theme that is not installed is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browsers import barriers
from tests.themes.settings import THEMES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
#: Themes whose sidebar is the way from one app to another.
WITH_SIDEBAR = {"unfold", "jazzmin", "django_daisy"}
PLACES = ["Overview", "Runs", "Causes", "Queues", "Workers", "Audit log"]

#: What a page looks like, as the browser has computed it.
COMPUTED = """() => {
  const style = (name, property) => {
    const found = document.querySelector(name);
    return found ? getComputedStyle(found)[property] : null;
  };
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (!/^rgba\\(.*, 0\\)$/.test(colour) && colour !== "transparent") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const drawn = (shapes, property) => [...document.querySelectorAll(`#durable-page svg ${shapes}`)].map((each) => ({
    shape: each.outerHTML, colour: getComputedStyle(each)[property], ground: ground(each.closest("svg")),
  }));
  return {
    counts: style(".durable-counts", "display"),
    card: style("#durable-card .durable-incidents > li", "display"),
    boxes: [...document.querySelectorAll("#durable-page [type=checkbox], #durable-page .toggle")].map(
      (each) => each.getBoundingClientRect().width),
    marks: [...drawn("rect", "fill"), ...drawn(":is(line, polyline)", "stroke")],
    unseen: Math.max(0, ...[...document.querySelectorAll(".durable-scroll:has(> #result_list)")].map(
      (each) => each.scrollWidth - each.clientWidth)),
    tooWide: document.documentElement.scrollWidth - innerWidth,
    size: parseFloat(style("#durable-page p", "fontSize") ?? "16"),
  };
}"""

#: Whether an element is not in the middle of fading in.
OPAQUE = """(element) => {
  for (let each = element; each; each = each.parentElement) if (getComputedStyle(each).opacity !== "1") return false;
  return true;
}"""


@dataclass(frozen=True)
class Site:
    """A project that has the theme, in a process of its own: where it is, and the pages by their names."""

    theme: str
    address: str
    pages: Mapping[str, str]


@pytest.fixture(scope="module", params=THEMES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    theme: str = request.param
    if any(importlib.util.find_spec(each) is None for each in THEMES[theme]):
        pytest.skip(f"{theme} is not installed: uv sync --group themes")
    path = tmp_path_factory.mktemp(theme)
    environment = {
        **os.environ,
        "ADMIN_THEME": theme,
        "DEBUG": "1",
        "DJANGO_SETTINGS_MODULE": "tests.themes.settings",
        "DATABASE_URL": f"sqlite:///{path / 'site.sqlite3'}",
    }
    command = [sys.executable, "-m", "tests.themes.site"]
    with (path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        said = process.stdout.readline()  # it ends with the process
        try:
            assert said, (path / "log").read_text()[-2_000:]
            yield Site(theme, **json.loads(said))
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


@pytest.fixture(params=["light-1280", "dark-1280", "dark-390"])
def look(request: pytest.FixtureRequest) -> str:
    """The colours of the screen, and its width."""
    return str(request.param)


@pytest.fixture
def page(chromium: Browser, look: str) -> Iterator[Page]:
    scheme, width = look.split("-")
    with chromium.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": int(width), "height": 900},
        timezone_id="UTC",
    ) as context:
        yield context.new_page()


def keep_picture(site: Site, page: Page, look: str, name: str) -> None:
    """Keep a picture of the page if THEME_PICTURES says where."""
    if above := os.environ.get("THEME_PICTURES"):
        page.screenshot(path=Path(above) / f"{site.theme}-{look}" / f"{name}.png", full_page=True)


def test_each_page_can_be_used_and_read(site: Site, page: Page, look: str) -> None:
    """Below a path: whatever a page loads or asks for is there."""
    lost: list[str] = []
    page.on("response", lambda answer: lost.append(answer.url) if answer.status >= 400 else None)
    complaints: list[tuple[str, object]] = []
    for name, address in site.pages.items():
        page.goto(site.address + address, wait_until="load")
        keep_picture(site, page, look, name)
        complaints += [(name, each) for each in complaints_about(name, page, look, site.theme)]
    assert complaints == []
    assert [each for each in lost if "durable" in each] == []
    link = page.locator("nav.durable-places a", has_text="Queues")
    page.goto(site.address + site.pages["waits"])
    link.click()
    page.wait_for_url("**/run/queues/")


def test_what_the_scripts_ask_for_and_keep_is_below_the_path(site: Site, chromium: Browser) -> None:
    with chromium.new_context(timezone_id="Asia/Tokyo") as context:
        page = context.new_page()
        with page.expect_response(lambda answer: "/live/" in answer.url) as found:
            page.goto(site.address + site.pages["waits"])
        assert found.value.status in (200, 304)
        assert {each["path"] for each in context.cookies() if each["name"] == "durable_zone"} == {"/shop/admin/"}


def complaints_about(name: str, page: Page, look: str, theme: str) -> Iterator[object]:
    """What is wrong on this page: one of durable's, or one of the project's own with a part of durable's."""
    if name == "index":
        return of_the_card(page)
    if name in ("objects", "object"):
        return of_the_object(name, page)
    return complaints_of(page, look, theme)


def of_the_object(name: str, page: Page) -> Iterator[object]:
    """What is wrong with the runs in the list of a model of the project's, and on the page of an object."""
    if name == "objects":
        if "Waiting for a message" not in page.locator("body").inner_text():
            yield "no sentence of the open run"
        return
    section = page.locator("#durable-page")
    tab = page.get_by_role("tab", name="Runs")
    if tab.count():  # a theme may show inlines in tabs
        tab.click()
        section.wait_for(state="visible")
        page.wait_for_function(OPAQUE, arg=section.element_handle())  # it may fade in, after another tab fades out
    if section.count() != 1 or not section.is_visible():
        yield "no runs of the object"
        return
    if not section.locator("a.button", has_text="Send a message").first.is_visible():
        yield "no button that answers"
    if section.evaluate("(each) => each.scrollWidth - each.clientWidth") > 0:
        yield "wider than its place"
    yield from unreadable(page, "#durable-page")


def of_the_card(page: Page) -> Iterator[object]:
    """What is wrong with durable's part of the admin's index."""
    if page.evaluate(COMPUTED)["card"] != "flex":
        yield "no shape"
    yield from unreadable(page, "#durable-card")


def unreadable(page: Page, within: str) -> Iterator[object]:
    for each in barriers(page, ("color-contrast",), within=within):
        yield from ((node["html"], node["any"][0]["message"]) for node in each["nodes"])


def complaints_of(page: Page, look: str, theme: str) -> Iterator[object]:
    """What is wrong on a page of durable's."""
    if theme in WITH_SIDEBAR and not page.locator("a[href$='/auth/user/']").count():
        yield "the theme's sidebar does not lead to other apps"
    shown = page.locator("nav.durable-places a").all_inner_texts()
    if not set(PLACES) <= set(shown) or not page.locator("nav.durable-places").is_visible():
        yield "no way to the other pages", shown
    if page.locator("#durable-page h1:visible").count() != 1:
        yield "no title"
    found = page.evaluate(COMPUTED)
    if found["unseen"] > 0 and "390" not in look:
        yield "columns of the list are out of sight", found["unseen"]
    if found["tooWide"] > 0 or found["size"] < 12 or found["counts"] not in {"grid", None}:
        yield found["tooWide"], found["size"], found["counts"]
    for mark in found["marks"]:
        if mark["colour"] == mark["ground"] or (look.startswith("dark") and mark["colour"] == "rgb(0, 0, 0)"):
            yield "this part of a chart cannot be seen", mark
    if found["boxes"] and max(found["boxes"]) > 40:
        yield "a box as wide as a field", found["boxes"]
    yield from unreadable(page, "#durable-page")
