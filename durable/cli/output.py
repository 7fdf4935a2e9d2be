"""Output: data to standard output in the requested format, messages to standard error; and the exit statuses.

Owns the escaping of foreign text, tables and colours (on a terminal alone). Knows nothing about runs.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from io import StringIO
from textwrap import indent
from typing import Any, Final, Literal

from django.core.management.base import OutputWrapper

from durable.core.words import safe


class Exit(IntEnum):
    """The exit statuses: 0 and 1 are results, the others say why there is none."""

    OK = 0
    REFUSED = 1  # a run was not found, did not allow the verb, or failed; or the doctor found a problem
    USAGE = 2  # invalid usage
    TIMEOUT = 3  # the wait has timed out
    UNREACHABLE = 4  # the database does not answer, or lacks migrations
    INTERRUPTED = 130  # Ctrl-C
    PIPE = 141  # the reader has closed the output


Format = Literal["table", "json", "ids", "text", "sarif", "markdown"]
FORMATS: Final[tuple[Format, ...]] = ("table", "json", "ids")

SENTENCE: Final = 30  # the fewest columns for a sentence beside its row; with fewer, it is printed below the row

_STYLES: Final = {
    "completed": "green",
    "ok": "green",
    "done": "green",
    "failed": "red",
    "exhausted": "red",
    "held": "red",
    "unknown": "yellow",
    "problem": "bold red",
    "refused": "red",
    "running": "cyan",
    "rolling_back": "yellow",
    "paused": "yellow",
    "note": "yellow",
    "cancelled": "dim",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with the colour of a word, for example the state of a run."""

    text: str
    word: str = ""


class Output:
    """Prints in one format.

    `format` is "table", "json" (a JSON document on each line) or "ids" (an id on each line). Reports on code have
    "text" and "sarif" instead of tables.
    """

    def __init__(
        self, stdout: OutputWrapper, stderr: OutputWrapper, format: Format = "table", *, is_coloured: bool = True
    ) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.format = format
        self._is_coloured = is_coloured and stdout.isatty()

    # -- data

    def json(self, data: Any) -> None:
        """Print one line of JSON in ASCII: no terminal or program on the way interprets a character of it."""
        self.stdout.write(json.dumps(data, separators=(", ", ": ")))

    def pieces(self, pieces: Iterable[str]) -> str:
        """Print a line in pieces, each as it comes; return the last one."""
        last = ""
        for last in pieces:
            self.stdout.write(last, ending="")
        self.stdout.write("")
        return last

    def pretty(self, data: Any) -> None:
        """Print JSON for reading: on a terminal indented, else one line."""
        self.stdout.write(json.dumps(data, indent=2 if self.stdout.isatty() else None))

    def id(self, run_id: str) -> None:
        """Print one id; ids contain printable characters only."""
        self.stdout.write(run_id)

    def line(self, text: object = "") -> None:
        self.stdout.write(safe(text))

    def text(self, text: object) -> None:
        """Print text of several lines."""
        self.stdout.write(safe(text, lines=True))

    def indented(self, text: object) -> None:
        """Print text of several lines from elsewhere, indented so that none looks like a line of durable's."""
        self.text(indent(str(text), "  ", lambda _line: True))

    def facts(self, facts: Mapping[str, object]) -> None:
        """Print names and values, one to a line; empty values are left out."""
        shown = {name: value for name, value in facts.items() if value not in (None, "")}
        width = max(map(len, shown), default=0)
        for name, value in shown.items():
            self.line(f"{name.ljust(width)}  {value}")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[Cell | object]]) -> None:
        """Print a table: on a terminal in colour and as wide as the terminal, else plain and as wide as its
        contents.
        """
        cells = [[each if isinstance(each, Cell) else Cell(str(each)) for each in row] for row in rows]
        if not cells:
            return
        drawn = _rich_table(headings, cells) if self._is_coloured else None
        self.stdout.write(_plain_table(headings, cells) if drawn is None else drawn, ending="")

    # -- messages

    def say(self, text: object) -> None:
        """Print a line for the person at the terminal."""
        self.stderr.write(safe(text))

    def complain(self, text: object) -> None:
        """Print a line about something that was not done."""
        self.stderr.write(f"durable: {safe(text)}")


def _plain_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    lines = [list(headings), *([safe(cell.text) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    drawn = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)
    return "".join(f"{line.rstrip()}\n" for line in drawn)


def _rich_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str | None:
    """Draw the table with rich; None if rich, the extra `durable-django[cli]`, is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return None
    width = shutil.get_terminal_size().columns
    lasts = [safe(row[-1].text) for row in rows]
    others = [
        max(map(len, column)) for column in zip(*([safe(cell.text) for cell in row[:-1]] for row in rows), strict=True)
    ]
    is_narrow = max(map(len, lasts)) > SENTENCE > width - sum(others) - 2 * len(others)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    if not is_narrow:
        table.add_column(headings[-1], overflow="fold", ratio=1)
    for row in rows:
        shown = row[:-1] if is_narrow else row
        table.add_row(*(Text(safe(cell.text), style=_STYLES.get(cell.word, "")) for cell in shown))
    drawn = StringIO()
    Console(file=drawn, force_terminal=True, width=width, highlight=False, legacy_windows=False).print(table)
    return _with_sentences(drawn.getvalue(), lasts, width) if is_narrow else drawn.getvalue()


def _with_sentences(drawn: str, sentences: Sequence[str], width: int) -> str:
    """Add each row's last cell below it, for a narrow terminal."""
    heading, *lines = drawn.splitlines()
    indent = " " * 4
    parts = [heading]
    for line, sentence in zip(lines, sentences, strict=True):
        parts += [line, *textwrap.wrap(sentence, max(20, width), initial_indent=indent, subsequent_indent=indent)]
    return "".join(f"{line}\n" for line in parts)
