"""The linter finds what each workflow of the corpus says of itself, and nothing else; nothing in the docs' programs.

The corpus of workflows after ideas of other engines' examples was marked by hand before the linter read it:
`# expect:` where it says what is wrong, `# missed:` where it does not. Every finding was looked at by hand, and each
line that is not marked is right.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from durable.lint import ALLOW, RULES, Finding, lint
from tests.docs.pages import PAGES, language, page
from tests.lint.corpus_files import CORPUS, FOREIGN, Place, expected, missed, workflows_in

ROOT = Path(__file__).resolve().parent.parent.parent


def places(findings: list[Finding], corpus: Path) -> list[Place]:
    return sorted((str(Path(each.path).relative_to(corpus)), each.line, each.id) for each in findings)


def test_the_findings_of_the_corpus_are_those_expected() -> None:
    found, wanted = places(lint([CORPUS]), CORPUS), expected(CORPUS)
    assert [each for each in found if each not in wanted] == [], "findings on right code"
    assert [each for each in wanted if each not in found] == [], "missed"


def test_the_corpus_is_large_and_has_every_rule() -> None:
    assert workflows_in(CORPUS) >= 120
    assert {each for _, _, each in expected(CORPUS)} == {rule.id for rule in RULES} | {ALLOW}


def test_a_finding_in_a_helper_is_named_for_each_workflow_that_calls_it() -> None:
    found = [each for each in lint([CORPUS / "flow.py"]) if each.id == "W101"]
    assert {each.workflow for each in found} == {"flow.one_caller", "flow.other_caller"}
    assert len({(each.path, each.line) for each in found}) == 1


@pytest.mark.parametrize("path", ["project", "durable"])
def test_nothing_is_found_in_right_code(path: str) -> None:
    assert lint([ROOT / path]) == []


@pytest.mark.parametrize("path", ["tests/e2e", "tests/chaos", "tests/support", "tests/tasks"])
def test_no_mistake_is_found_in_workflows_of_tests(path: str) -> None:
    assert [each for each in lint([ROOT / path]) if each.level != "hint"] == []


def test_rules_have_an_id_of_their_own_and_texts() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.why.endswith(".")
        assert rule.fix.endswith((".", "....")) or "..." in rule.fix
        assert rule.level in ("error", "warning", "hint")


def test_the_fix_of_a_captured_variable_names_it(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(
        "from durable import Context, workflow\n\n\n"
        '@workflow(name="tests.pages")\n'
        "def pages(ctx: Context) -> None:\n"
        '    ctx.join("all", {str(page): lambda c: c.step("read", print, page) for page in range(3)})\n',
        encoding="utf-8",
    )
    (found,) = [each for each in lint([tmp_path]) if each.id == "W135"]
    assert "lambda c, page=page: ..., or functools.partial(body, page)." in found.fix


# -- workflows after ideas of other engines' examples, written as somebody writes them who comes from there


#: Of each engine: workflows, right findings, and mistakes that the linter does not see.
NUMBERS: Final = {
    "dbos": (11, 15, 0),
    "inngest": (9, 17, 0),
    "prefect": (9, 12, 1),
    "restate": (9, 15, 0),
    "temporal": (12, 20, 0),
}


def test_the_findings_are_those_that_a_reader_marked() -> None:
    found = sorted((str(Path(each.path).relative_to(FOREIGN)), each.line, each.id) for each in lint([FOREIGN]))
    assert found == expected(FOREIGN)


def test_the_numbers_of_each_engine() -> None:
    right = Counter(path.removesuffix(".py") for path, *_ in expected(FOREIGN))
    unseen = Counter(path.removesuffix(".py") for path, *_ in missed(FOREIGN))
    names = Counter(
        name for path in FOREIGN.glob("*.py") for name in re.findall(r'@workflow\(name="(\w+)\.', path.read_text())
    )
    assert {each: (names[each], right[each], unseen[each]) for each in names} == NUMBERS
    assert sum(names.values()) == workflows_in(FOREIGN)


# -- the programs of the docs keep the rules that the docs teach; two pages show what breaks them


BREAKING: Final = ("docs/rules.md", "docs/reference/examples/errors.md")
_FILE: Final = re.compile(r"# (?P<path>[\w/]+\.py)\b")


@pytest.mark.parametrize("name", [each for each in PAGES if each not in BREAKING])
def test_a_page_has_no_findings(name: str, tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    for example in page(name).examples():
        if language(example) == "python":
            named = _FILE.match(example.parsed)
            path = named["path"] if named is not None else "main.py"
            texts[path] = f"{texts.get(path, '')}\n{example.parsed}"
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert lint([tmp_path]) == []
