"""What tests in a real browser share: the worker behind the pages, its complaints, barriers that axe finds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from axe_playwright_python.sync_playwright import Axe

if TYPE_CHECKING:
    from playwright.sync_api import Page


ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def working(environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Inside, a worker process serves the database and Redis of the environment, and writes to `log`."""
    command = [sys.executable, str(ROOT / "manage.py"), "durable_worker"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        yield process
        process.terminate()
        process.wait(120)


def complaints_of(page: Page) -> list[str]:
    """What the browser will complain about on the page: errors, warnings, and what the policy forbids among them."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


RULES: Final = ("wcag2a", "wcag2aa", "best-practice")
#: The one of them that depends on colours.
CONTRAST: Final = ("color-contrast",)

# Only what is wrong is described, and no style sheet is loaded again: the one rule that reads them is not among ours.
_CHEAPLY: Final = {"resultTypes": ["violations"], "reporter": "no-passes", "preload": {"assets": ["media"]}}


_SCRIPT: Final = Axe().axe_script
#: Asks axe. The contrast of texts that look alike is looked at once, and of all of them if one is too faint.
_ASK: Final = """async ([rules, within, but, options]) => {
  const context = within === null ? document : { include: [within], ...(but === null ? {} : { exclude: [but] }) };
  const ask = async (texts) => {
    axe.configure({ rules: [{ id: "color-contrast", selector: texts }] });
    return (await axe.run(context, { runOnly: rules, ...options })).violations;
  };
  const texts = chosen(within, but);
  texts.forEach((each) => each.setAttribute("data-chosen", ""));
  const found = await ask("[data-chosen]");
  texts.forEach((each) => each.removeAttribute("data-chosen"));
  return found.some((each) => each.id === "color-contrast") ? await ask("*") : found;
}"""
_CHOSEN: Final = (Path(__file__).parent / "chosen.js").read_text()
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
    if not page.evaluate("'axe' in window"):
        page.evaluate(_SCRIPT)
        page.evaluate(f"() => {{ {_CHOSEN} }}")
    return list(page.evaluate(_ASK, [list(rules), within, but, _CHEAPLY]))


def look(
    page: Page,
    name: str,
    complaints: list[str] | None = None,
    *,
    schemes: Sequence[str] = ("dark", "light"),
    but: str | None = None,
) -> None:
    """Assert that the page has no barrier, wide and on a telephone, and reaches beyond the window in neither.

    A page has the same structure in all colours, so that it is looked at once in each width; both colours on a wide
    screen, where no part of a table is hidden.

    What axe sets is none of the browser's `complaints`. With DURABLE_SHOTS a picture of each look is kept there.
    """
    looks = [(schemes[0], 390, RULES), *((each, 1440, CONTRAST) for each in schemes[:-1]), (schemes[-1], 1440, RULES)]
    for scheme, width, rules in looks:
        show_as(page, scheme=scheme, size={"width": width, "height": 900})
        if folder := os.environ.get("DURABLE_SHOTS"):
            page.screenshot(path=f"{folder}/{name}-{scheme}-{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (name, scheme, width)
        found = [(each["id"], each["nodes"][0]["html"][:200]) for each in barriers(page, rules, but=but)]
        assert found == [], (name, scheme, width)
    if complaints is not None:
        complaints.clear()
