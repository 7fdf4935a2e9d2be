"""Comments that silence a finding on their line: `# durable: allow[W101] reason`."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Allowance", "allowances", "problem_of"]

_COMMENT: Final = re.compile(r"#.*?\bdurable:\s*allow\b\s*(?:\[(?P<ids>[^\]]*)\])?(?P<reason>[^#]*)")


@dataclass(frozen=True, slots=True)
class Allowance:
    """A comment. It speaks of its own line, and of the next line of code if it stands alone."""

    line: int
    ids: tuple[str, ...]
    reason: str
    lines: frozenset[int]


def allowances(text: str) -> list[Allowance]:
    """Return the comments of a file that silence findings, those that lack something included."""
    if "durable:" not in text:
        return []
    return list(_allowances(text))


def _allowances(text: str) -> Iterator[Allowance]:
    lines = text.splitlines()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type != tokenize.COMMENT or (found := _COMMENT.search(token.string)) is None:
                continue
            line = token.start[0]
            spoken_of = {line}
            if token.line[: token.start[1]].strip() == "":
                spoken_of |= {_next_code(lines, line)}
            ids = tuple(
                each.strip().removeprefix("durable.") for each in (found["ids"] or "").split(",") if each.strip()
            )
            yield Allowance(line, ids, found["reason"].strip(" :-\t"), frozenset(spoken_of))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return  # the file is no Python: that is told


def _next_code(lines: list[str], line: int) -> int:
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
