"""The examples of the reference, each shown after the text of what it is an example for.

The pages in `reference/examples` have them: a heading of names in code, such as `Context.step`, means
`durable.Context.step`, and the blocks of Python below it are the example. A paragraph "Also for `Context.sleep`." at
the beginning of a section adds names. A build warns of an example that it has shown nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sphinx.application import Sphinx
from sphinx.util import logging

__all__ = ["examples", "setup"]

PAGES: Final = Path(__file__).resolve().parents[1] / "reference" / "examples"
#: The pages that show them.
SHOWING: Final = frozenset({"reference/api", "reference/testing"})
_NAMES: Final = re.compile(r"`[\w.]+`(?:, `[\w.]+`)*")
_ALSO: Final = re.compile(r"\s*Also for (`[\w.]+`(?:,\s`[\w.]+`)*)\.")
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> Iterator[tuple[str, list[str]]]:
    """Yield each name with the blocks of its example. Raises ValueError for a section without a block."""
    for path in sorted(PAGES.glob("*.md")):
        for section in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            heading, _, text = section.partition("\n")
            if _NAMES.fullmatch(heading):
                if not (blocks := _BLOCK.findall(text)):
                    raise ValueError(f"{path.name}: the section {heading} has no block of Python")
                also = _ALSO.match(text)
                for name in re.findall(r"`([\w.]+)`", heading + (also[1] if also else "")):
                    yield f"durable.{name}", blocks


class _Shown:
    """Which examples a build has shown."""

    def __init__(self) -> None:
        self._blocks = dict(examples())
        self._left = set(self._blocks)
        self._is_whole = False

    def begin(self, _app: Sphinx, _env: Any, docnames: list[str]) -> None:
        """Note whether this build reads all of the pages: Sphinx's event `env-before-read-docs`."""
        self._is_whole = set(docnames) >= SHOWING

    def append(self, _app: Sphinx, _what: str, name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
        """Append the example to a docstring's lines: Sphinx's event `autodoc-process-docstring`."""
        self._left.discard(name)
        for block in self._blocks.get(name, ()):
            lines += ["", ".. code-block:: python", "", *(f"   {line}" for line in block.splitlines()), ""]

    def warn(self, _app: Sphinx, failure: Exception | None) -> None:
        """Warn of the rest: Sphinx's event `build-finished`."""
        if self._left and self._is_whole and failure is None:
            logging.getLogger(__name__).warning("examples of what the reference does not have: %s", sorted(self._left))


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's hook."""
    shown = _Shown()
    app.connect("env-before-read-docs", shown.begin)
    app.connect("autodoc-process-docstring", shown.append)
    app.connect("build-finished", shown.warn)
    return {"parallel_read_safe": False}
