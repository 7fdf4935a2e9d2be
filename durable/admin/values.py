"""The published values of a run as cards: numbers, texts, tables, Markdown and JSON.

Markdown is rendered by markdown-it-py (the extra `markdown`), without the HTML and the images in it; without that
package it is shown as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from django.utils.safestring import SafeString, mark_safe

from durable.admin.pages import AdminPages
from durable.admin.payload_page import folded_html
from durable.admin.text import location_query
from durable.inspection.humanize import decimal, thousands
from durable.inspection.shown import ShownValue, values_of
from durable.models import Run

_MOST_ROWS: Final = 50  # of a table
_MOST_COLUMNS: Final = 12
_MOST_TEXT: Final = 5_000  # characters of a card
_MOST_MARKDOWN: Final = 20_000  # characters to render


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A value for a template. `form` says which of the other parts it has."""

    name: str
    form: str
    at: datetime
    url: str
    text: str = ""
    html: SafeString | str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    more_rows: int = 0
    is_cut: bool = False


def cards_of(admin: AdminPages, run: Run) -> list[Card]:
    """Return the cards of a run's values, for users who may see payloads; three statements at most."""
    return [_card(each, f"{admin.url('step', run.id)}{location_query(each.location)}") for each in values_of(run)]


def _card(value: ShownValue, url: str) -> Card:
    about: dict[str, Any] = {"name": value.name, "at": value.at, "url": url}
    if value.is_left_out:
        return Card(form="left_out", **about)
    if value.form == "number":
        return Card(form="number", text=_number(value.value), **about)
    if value.form == "table":
        return _table(value.value, about)
    if value.form == "markdown" and len(value.value) <= _MOST_MARKDOWN and (html := rendered(value.value)) is not None:
        return Card(form="markdown", html=html, **about)
    if isinstance(value.value, str):
        is_cut = len(value.value) > _MOST_TEXT
        return Card(form="text", text=value.value[:_MOST_TEXT], is_cut=is_cut, **about)
    return Card(form="json", html=folded_html(value.value, _MOST_TEXT), **about)


def _number(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return thousands(value)
    if isinstance(value, float) and value - value == 0:
        return thousands(int(value)) if value.is_integer() and abs(value) < 2**53 else decimal(value, 2)
    return str(value)


def _table(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> Card:
    every = list(dict.fromkeys(name for row in rows[:_MOST_ROWS] for name in row))
    columns = every[:_MOST_COLUMNS]
    cells = [[_cell(row.get(name)) for name in columns] for row in rows[:_MOST_ROWS]]
    is_cut = len(every) > len(columns)
    return Card(
        form="table", columns=columns, rows=cells, more_rows=max(0, len(rows) - _MOST_ROWS), is_cut=is_cut, **about
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"  # as in JSON
    text = _number(value) if isinstance(value, int | float) else str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def rendered(text: str) -> SafeString | None:
    """Return Markdown as HTML, without the HTML and the images in it; None without the package that renders it."""
    renderer = _renderer()
    if renderer is None:
        return None
    html: SafeString = mark_safe(renderer.render(text))  # noqa: S308  # HTML in the text is escaped, and so are the addresses
    return html


@cache
def _renderer() -> Any:
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        return None
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")

    def below_the_name(state: Any) -> None:
        """Let the headings come below that of the card, which has the value's name."""
        for each in state.tokens:
            if each.type in ("heading_open", "heading_close"):
                each.tag = f"h{min(int(each.tag[1:]) + 2, 6)}"

    renderer.core.ruler.push("below_the_name", below_the_name)

    def link(self: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
        tokens[place].attrSet("rel", "noreferrer nofollow")
        return str(self.renderToken(tokens, place, options, env))

    renderer.add_render_rule("link_open", link)
    return renderer
