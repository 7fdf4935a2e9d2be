"""Barriers of a page in the browser, as axe finds them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from axe_playwright_python.sync_playwright import Axe

if TYPE_CHECKING:
    from playwright.sync_api import Page

RULES: Final = ("wcag2a", "wcag2aa", "best-practice")

# Only what is wrong is described, and no style sheet is loaded again: the one rule that reads them is not among ours.
_CHEAPLY: Final = {"resultTypes": ["violations"], "reporter": "no-passes", "preload": {"assets": ["media"]}}


_SCRIPT: Final = Axe().axe_script
#: Links change into the colours of another scheme slowly. Colours in between have no contrast that counts.
_END_TRANSITIONS: Final = """() => document.getAnimations().filter((each) => each instanceof CSSTransition)
  .forEach((each) => each.finish())"""


def show_as(page: Page, *, scheme: str, size: Mapping[str, int], forced: str = "none") -> None:
    """Show a page that is loaded in these colours, all of them at once, and in a window of this size."""
    page.set_viewport_size(size)  # type: ignore[arg-type]  # Playwright's own class of such dicts
    page.emulate_media(color_scheme=scheme, forced_colors=forced)  # type: ignore[arg-type]  # two of its words
    page.evaluate(_END_TRANSITIONS)


def barriers(
    page: Page, rules: tuple[str, ...] = RULES, *, within: str | None = "#content", but: str | None = None
) -> list[dict[str, Any]]:
    """Return what violates the rules (axe's tags or names) in the element `within`.

    The element that `but` selects is left out. A page gets axe, half a megabyte, once.
    """
    context = within and {"include": [within], **({"exclude": [but]} if but else {})}
    if not page.evaluate("'axe' in window"):
        page.evaluate(_SCRIPT)
    options = {"runOnly": list(rules), **_CHEAPLY}
    found = page.evaluate("([context, options]) => axe.run(context ?? document, options)", [context, options])
    return list(found["violations"])


def look(
    page: Page,
    name: str,
    complaints: list[str] | None = None,
    *,
    schemes: Sequence[str] = ("dark", "light"),
    but: str | None = None,
) -> None:
    """Assert that the page has no barrier, wide and on a telephone, and reaches beyond the window in neither.

    What axe sets is none of the browser's `complaints`. With DURABLE_SHOTS a picture of each look is kept there.
    """
    for scheme, width in product(schemes, (390, 1440)):
        show_as(page, scheme=scheme, size={"width": width, "height": 900})
        if folder := os.environ.get("DURABLE_SHOTS"):
            page.screenshot(path=f"{folder}/{name}-{scheme}-{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (name, scheme, width)
        found = [(each["id"], each["nodes"][0]["html"][:200]) for each in barriers(page, but=but)]
        assert found == [], (name, scheme, width)
    if complaints is not None:
        complaints.clear()
