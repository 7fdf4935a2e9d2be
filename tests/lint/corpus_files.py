"""The corpora: small workflows, right and wrong, with the findings expected in comments on their lines."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
CORPUS: Final = HERE / "corpus"
FOREIGN: Final = HERE / "foreign"

Place = tuple[str, int, str]  # the file below its corpus, the line, the finding's id

_EXPECTED: Final = re.compile(r"# expect: (?P<ids>W\d+(?:, W\d+)*)\s*$")
_MISSED: Final = re.compile(r"# missed: (?P<ids>W\d+(?:, W\d+)*)\s*$")
_WORKFLOW: Final = re.compile(r"^\s*@(?:durable\.)?(?:workflow|flow)\b", re.MULTILINE)


def expected(corpus: Path) -> list[Place]:
    """What the comments of all files say."""
    return _marked(corpus, _EXPECTED)


def missed(corpus: Path) -> list[Place]:
    """What a reader has found that the linter does not find."""
    return _marked(corpus, _MISSED)


def _marked(corpus: Path, mark: re.Pattern[str]) -> list[Place]:
    return sorted(
        (str(path.relative_to(corpus)), token.start[0], each)
        for path in corpus.rglob("*.py")
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.COMMENT and (found := mark.search(token.string))
        for each in found["ids"].split(", ")
    )


def workflows_in(corpus: Path) -> int:
    """How many workflows the files have."""
    return sum(len(_WORKFLOW.findall(path.read_text())) for path in corpus.rglob("*.py"))
