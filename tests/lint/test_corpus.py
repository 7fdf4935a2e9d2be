"""The linter finds what each workflow of the corpus says of itself, and nothing else."""

from pathlib import Path

import pytest

from durable.lint import ALLOW, RULES, Finding, lint
from tests.lint.corpus_files import CORPUS, Place, expected, workflows_in

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
