"""A short film of a page: screenshots of a real browser with a drawn pointer, as one animated WebP."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image, ImageDraw

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

SIZE: Final = {"width": 1120, "height": 720}
_ARROW: Final = ((0, 0), (0, 19), (5, 15), (8, 22), (11, 21), (8, 14), (14, 14))
_MOVES: Final = 6  # frames of a movement
_MOVE: Final = 0.06  # seconds of each
_PATIENCE: Final = 120.0  # seconds


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
    film.click(page.get_by_role("button", name="Recover"))
    film.until(page.get_by_text("Done:").first, 0.7)
    film.hold(2.0)
    film.click(page.get_by_role("link", name="Overview").first)
    page.get_by_role("link", name="GatewayTimeout").first.wait_for(state="hidden")
    film.hold(3.0)
    film.save(path)
