"""Barriers of a page in the browser, as axe finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from axe_playwright_python.sync_playwright import Axe

if TYPE_CHECKING:
    from playwright.sync_api import Page

RULES: Final = ("wcag2a", "wcag2aa", "best-practice")

# Only what is wrong is described, and no style sheet is loaded again: the one rule that reads them is not among ours.
_CHEAPLY: Final = {"resultTypes": ["violations"], "reporter": "no-passes", "preload": {"assets": ["media"]}}


def barriers(
    page: Page, rules: tuple[str, ...] = RULES, *, within: str | None = "#content", but: str | None = None
) -> list[dict[str, Any]]:
    """Return what violates the rules (axe's tags or names) in the element `within`.

    The element that `but` selects is left out.
    """
    context = within and {"include": [within], **({"exclude": [but]} if but else {})}
    response = Axe().run(page, context=context, options={"runOnly": list(rules), **_CHEAPLY}).response
    return list(response["violations"])
