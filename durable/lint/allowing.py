"""Comments that silence a finding on their line: `# durable: allow[W101] reason`."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_COMMENT: Final = re.compile(r"#.*?\bdurable:\s*allow\b\s*(?:\[(?P<ids>[^\]]*)\])?(?P<reason>[^#]*)")


@dataclass(frozen=True, slots=True)
class Allowance:
    """A comment. `lines` are those of the statement it stands beside; of the next one if it stands alone."""

    line: int
    ids: tuple[str, ...]
    reason: str
    lines: range


def allowances(text: str, tree: ast.Module) -> list[Allowance]:
    """Return the comments of a file that silence findings, those that lack something included."""
    if "durable:" not in text:
        return []
    return list(_allowances(text, sorted(_statements(tree))))


def _allowances(text: str, statements: Sequence[tuple[int, int]]) -> Iterator[Allowance]:
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or (found := _COMMENT.search(token.string)) is None:
            continue
        line, column = token.start
        is_alone = not lines[line - 1][:column].strip()
        spoken_of = _lines_around(_next_code(lines, line) if is_alone else line, statements)
        ids = tuple(each.strip().removeprefix("durable.") for each in (found["ids"] or "").split(",") if each.strip())
        yield Allowance(line, ids, found["reason"].strip(" :-\t"), spoken_of)


def _statements(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each statement; of one that has others in it, those of its head."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            continue
        body = getattr(node, "body", None)
        first = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
        if isinstance(body, list) and body:
            yield first, max(first, body[0].lineno - 1)
        elif not isinstance(node, ast.match_case):
            yield first, node.end_lineno or first


def _lines_around(line: int, statements: Sequence[tuple[int, int]]) -> range:
    """Return the lines of the innermost statement that has the line."""
    found = range(line, line + 1)
    for first, last in statements:
        if first > line:
            break
        if line <= last:
            found = range(first, last + 1)
    return found


def _next_code(lines: Sequence[str], line: int) -> int:
    following = line + 1
    while following <= len(lines) and lines[following - 1].strip().startswith("#"):
        following += 1
    return following


def problem_of(allowance: Allowance, known: Collection[str]) -> str | None:
    """Return what a comment lacks; None if it silences something."""
    if not allowance.ids:
        return "The comment names no finding."
    unknown = [each for each in allowance.ids if each not in known]
    if unknown:
        return f"There is no finding {', '.join(unknown)}."
    return None if allowance.reason else "The comment gives no reason."
