"""Take the pictures of the documentation, and its film: `uv run python -m tests.tools.pictures.take`.

Starts PostgreSQL, Redis, a worker and a development server of its own, fills the database, and writes to docs/images.
`CHROMIUM` names the browser's program, if it is not Playwright's own.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.error import URLError
from urllib.request import urlopen

from PIL import Image, ImageDraw

from project.servers import EmbeddedPostgres, EmbeddedRedis, free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page


ROOT: Final = Path(__file__).resolve().parents[3]
IMAGES: Final = ROOT / "docs" / "images"
WIDE: Final = {"width": 1280, "height": 960}
TELEPHONE: Final = {"width": 390, "height": 844}
PASSWORD: Final = "correct horse"  # of fill.py
STUCK: Final = "import django; django.setup(); from tests.tools.pictures import workflows as w; w.import_catalogue.using(id='import-7').start('acme')"
_PATIENCE: Final = 120.0  # seconds
_COLOURS: Final = 256


@contextmanager
def _running(*command: str, environment: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, *command], env=environment, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # one of its steps hangs, as it should
            process.kill()
            process.wait()


def _await(address: str) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            with urlopen(address, timeout=5):  # this process's own server
                return
        except URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def take() -> None:
    """Start what is needed, take the pictures, and end it again."""
    from playwright.sync_api import sync_playwright

    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(fsync=False))
        redis = stack.enter_context(EmbeddedRedis())
        environment = {
            **os.environ,
            "DATABASE_URL": postgres.url,
            "REDIS_URL": redis.url,
            "DEBUG": "1",
            "DURABLE_BUILD": "7f3a",
            "DJANGO_SETTINGS_MODULE": "tests.tools.pictures.settings",
        }
        subprocess.run([sys.executable, "-m", "tests.tools.pictures.fill"], env=environment, cwd=ROOT, check=True)
        worker = ("manage.py", "durable_worker", "--concurrency", "4")
        stack.enter_context(_running(*worker, environment=environment))
        subprocess.run([sys.executable, "-c", STUCK], env=environment, cwd=ROOT, check=True)
        address = f"127.0.0.1:{free_port()}"
        stack.enter_context(_running("manage.py", "runserver", "--noreload", address, environment=environment))
        _await(f"http://{address}/admin/login/")
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
        page = _pictures(browser, f"http://{address}")
        shoot_incident(page, f"http://{address}", IMAGES / "incident.webp")
        browser.close()


def _pictures(browser: Browser, site: str) -> Page:
    """Take the pictures; return the page, in which a user is logged in."""
    page = browser.new_page(viewport=WIDE, color_scheme="light")  # type: ignore[arg-type]  # a dict like it
    page.goto(f"{site}/admin/login/?next=/admin/durable/")
    page.fill("#id_username", "ada")
    page.fill("#id_password", PASSWORD)
    page.click("input[type=submit]")
    page.get_by_text("busy", exact=True).first.wait_for(timeout=60_000)
    _shoot(page, "overview", is_whole=True)
    [cause] = re.findall(
        r"/causes/\w+/", page.get_by_role("link", name="GatewayTimeout").first.get_attribute("href") or ""
    )
    page.goto(f"{site}/admin/durable/run{cause}")
    _shoot(page, "cause", is_whole=True)
    page.goto(f"{site}/admin/durable/run/?workflow=acme.order")
    _shoot(page, "list")
    page.goto(f"{site}/admin/durable/run/?state=failed&q=ConnectionError")
    failed = f"{site}{page.locator('#result_list tbody th a').first.get_attribute('href')}"
    page.emulate_media(color_scheme="dark")
    page.goto(failed)
    _shoot(page, "run", is_whole=True)
    page.set_viewport_size(TELEPHONE)  # type: ignore[arg-type]  # a dict like it
    page.emulate_media(color_scheme="light")
    page.goto(f"{failed.removesuffix('change/')}replay/?at=charge+card")
    _shoot(page, "replay", is_whole=True)
    return page


def _shoot(page: Page, name: str, *, is_whole: bool = False) -> None:
    page.wait_for_load_state("networkidle")
    picture = Image.open(io.BytesIO(page.screenshot(full_page=is_whole, animations="disabled"))).convert("RGB")
    # A palette makes the file a third as large.
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


SIZE: Final = {"width": 1120, "height": 720}
_ARROW: Final = ((0, 0), (0, 19), (5, 15), (8, 22), (11, 21), (8, 14), (14, 14))
_MOVES: Final = 6  # frames of a movement
_MOVE: Final = 0.06  # seconds of each


class Film:
    """Frames of a page and how long each is shown. The pointer is drawn where the page's own would be."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._frames: list[Image.Image] = []
        self._seconds: list[float] = []
        self._pointer = (SIZE["width"] * 0.62, SIZE["height"] * 0.7)

    def hold(self, seconds: float) -> None:
        """Show the page as it is for so long."""
        self._add(self._picture(), seconds)

    def click(self, what: Locator) -> None:
        """Move the pointer to the element, and click."""
        what.scroll_into_view_if_needed()
        box = what.bounding_box()
        assert box is not None
        (x, y), target = self._pointer, (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        picture = self._picture()
        for number in range(1, _MOVES + 1):
            share = (number / _MOVES) ** 0.5  # slower towards its end
            self._pointer = (x + (target[0] - x) * share, y + (target[1] - y) * share)
            self._add(picture, _MOVE)
        self._add(picture, 0.5)
        what.click()

    def write(self, what: Locator, text: str) -> None:
        """Type the text, word by word."""
        self.click(what)
        for word in text.split():
            what.press_sequentially(f"{word} ")
            self.hold(0.2)

    def until(self, what: Locator, seconds: float) -> None:
        """Show what changes on the page until the element is there."""
        end = time.monotonic() + _PATIENCE
        while not what.is_visible():
            if time.monotonic() > end:
                raise TimeoutError(f"expected {what} within {_PATIENCE:.0f} s: {self._page.url}")
            self.hold(seconds)
            self._page.wait_for_timeout(seconds * 1000)

    def save(self, path: Path) -> None:
        """Write the film, which is shown over and over. Equal frames are one."""
        first, *others = self._frames
        durations = [round(each * 1000) for each in self._seconds]
        first.save(
            path, save_all=True, append_images=others, duration=durations, loop=0, lossless=True, quality=100, method=4
        )

    def _picture(self) -> Image.Image:
        self._page.wait_for_load_state("networkidle")
        return Image.open(io.BytesIO(self._page.screenshot(animations="disabled"))).convert("RGB")

    def _add(self, picture: Image.Image, seconds: float) -> None:
        frame = picture.copy()
        x, y = self._pointer
        arrow = [(x + dx, y + dy) for dx, dy in _ARROW]
        ImageDraw.Draw(frame).polygon(arrow, fill="black", outline="white")
        if self._frames and frame.tobytes() == self._frames[-1].tobytes():
            self._seconds[-1] += seconds
            return
        self._frames.append(frame)
        self._seconds.append(seconds)


def shoot_incident(page: Page, site: str, path: Path) -> None:
    """From the overview to the cause, five runs first, then all: in a page that is logged in."""
    page.set_viewport_size(SIZE)  # type: ignore[arg-type]  # a dict like it
    page.emulate_media(color_scheme="light")
    page.goto(f"{site}/admin/durable/")
    film = Film(page)
    film.hold(2.0)
    film.click(page.get_by_role("link", name="GatewayTimeout").first)
    film.hold(1.8)
    film.click(page.get_by_role("link", name="Try 5 first"))
    film.hold(1.0)
    film.write(page.get_by_role("textbox", name="Reason"), "the bank answers again")
    film.click(page.get_by_role("button", name="Try 5 of"))
    film.until(page.get_by_text("Done:").first, 0.7)
    film.hold(2.0)
    film.click(page.get_by_role("link", name="Overview").first)
    page.get_by_role("link", name="GatewayTimeout").first.wait_for(state="hidden")
    film.hold(3.0)
    film.save(path)


if __name__ == "__main__":
    take()
