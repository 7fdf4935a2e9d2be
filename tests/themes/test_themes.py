"""The pages in other themes of the admin: they can be used and read, in light and dark, on a wide and a narrow screen.

The themes are in the dependency group `themes`. A theme that is not installed is skipped.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.barriers import barriers
from tests.themes.settings import THEMES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"overview": "/admin/durable/", "list": "/admin/durable/run/", "run": "/admin/durable/run/waits/change/"}
PLACES = ["Overview", "Runs", "Causes", "Queues", "Workers", "Audit log"]

#: What a page looks like, as the browser has computed it.
LOOK = """() => {
  const style = (name, property) => {
    const found = document.querySelector(name);
    return found ? getComputedStyle(found)[property] : null;
  };
  return {
    counts: style(".durable-counts", "display"),
    chart: style(".durable-card svg rect", "fill"),
    tooWide: document.documentElement.scrollWidth - innerWidth,
    size: parseFloat(style("#durable-page p", "fontSize") ?? "16"),
  };
}"""


@pytest.fixture(scope="module", params=THEMES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a project that has the theme, in a process of its own."""
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
        address = process.stdout.readline().strip()  # it ends with the process
        try:
            assert address, (path / "log").read_text()[-2_000:]
            yield address
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[1280, 390])
def page(request: pytest.FixtureRequest, chromium: Browser, scheme: str) -> Iterator[Page]:
    with chromium.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": request.param, "height": 900},
        timezone_id="UTC",
    ) as context:
        yield context.new_page()


def test_each_page_can_be_used_and_read(site: str, page: Page) -> None:
    for name, address in PAGES.items():
        page.goto(site + address, wait_until="networkidle")
        shown = page.locator("nav.durable-places a").all_inner_texts()
        assert set(PLACES) <= set(shown), (name, shown)
        assert page.locator("nav.durable-places").is_visible()
        assert page.locator("#durable-page h1").count() == 1
        look = page.evaluate(LOOK)
        assert look["tooWide"] <= 0, (name, look)
        assert look["size"] >= 12, (name, look)
        if name == "overview":
            assert look["counts"] == "grid", look
            assert look["chart"] not in {"rgb(0, 0, 0)", None}, look
        unreadable = barriers(page, ("color-contrast",), within="#durable-page")
        assert not unreadable, [(each["html"], each["any"][0]["message"]) for each in unreadable[0]["nodes"]]
        link = page.locator("nav.durable-places a", has_text="Queues")
        link.click()
        page.wait_for_url("**/run/queues/")
