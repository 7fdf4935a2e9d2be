"""The directive `durable-settings`: every setting with its default and what it says, from `durable.conf.Values`."""

from __future__ import annotations

import re
from dataclasses import Field, fields
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from durable.conf import DURATIONS, Values

__all__ = ["SettingsTable", "setup"]

ITEM = re.compile(r"^ *- `(?P<name>[A-Z_]+)`: (?P<text>.+?)(?=^ *- `|\Z)", re.MULTILINE | re.DOTALL)


class SettingsTable(SphinxDirective):
    """A definition list. Raises SphinxDirective's error for a setting that the docstring does not describe."""

    def run(self) -> list[nodes.Node]:
        described = {found["name"]: " ".join(found["text"].split()) for found in ITEM.finditer(Values.__doc__ or "")}
        settings = fields(Values)
        if missing := {each.name for each in settings} ^ described.keys():
            raise self.error(
                f"the docstring of durable.conf.Values and its fields differ in {', '.join(sorted(missing))}"
            )
        lines = [f"`{each.name}` ({_default(each)})\n: {_sentence(described[each.name])}\n" for each in settings]
        return self.parse_text_to_nodes("\n".join(lines))


def _default(setting: Field[Any]) -> str:
    value = setting.default
    return f"{value:g} s" if setting.name in DURATIONS and isinstance(value, int | float) else f"`{value!r}`"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's hook."""
    app.add_directive("durable-settings", SettingsTable)
    return {"parallel_read_safe": True}
