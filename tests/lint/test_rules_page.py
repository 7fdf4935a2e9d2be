"""docs/rules.md has a section for each rule, whose first program breaks that rule alone and whose second keeps all."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from durable import Workflow
from durable.core import registry
from durable.lint import ALLOW, RULES, UNREADABLE, Rule, lint
from durable.testing import Harness, NotDeterministicError

PAGE: Final = Path(__file__).resolve().parent.parent.parent / "docs" / "rules.md"
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

before, *SECTIONS = re.split(r"^## (?=W\d)", PAGE.read_text(), flags=re.MULTILINE)


def found(program: str, tmp_path: Path) -> list[str]:
    path = tmp_path / "workflows.py"
    path.write_text(program)
    return [each.id for each in lint([path])]


def test_every_rule_has_its_section() -> None:
    assert [each.partition("\n")[0] for each in SECTIONS] == [f"{rule.id}: {rule.title}" for rule in RULES]
    assert ALLOW in before
    assert UNREADABLE in before


@pytest.mark.parametrize(
    ("rule", "section"), list(zip(RULES, SECTIONS, strict=False)), ids=lambda each: getattr(each, "id", "")
)
def test_the_programs_of_a_section(rule: Rule, section: str, tmp_path: Path) -> None:
    bad, good = _BLOCK.findall(section)
    assert set(found(bad, tmp_path)) == {rule.id}
    assert found(good, tmp_path) == []
    assert " ".join(section.split()).count(rule.why) == 1


_NOTICED: Final = re.compile(r"^Noticed by: (.*)\.$", re.MULTILINE)


def noticed(by: str) -> set[str]:
    """Return the rules whose sections say that `by` notices them."""
    return {each[:4] for each in SECTIONS for [line] in [_NOTICED.findall(each)] if by in line.split(", ")}


def test_each_section_says_who_notices() -> None:
    everyone = {each.id for each in RULES}
    assert noticed("the linter") == everyone
    told = before.partition("## What is noticed")[2].partition("## Silence")[0]
    table = set(re.findall(r"\| (W\d{3}) \|", told))
    assert noticed("the guard") == table == {"W105", "W106", "W109", "W123"}
    assert noticed("the second replay") == set(re.findall(r"W\d{3}", told)) - table
    assert noticed("each run") == {*ENDING, "W162"} - noticed("the guard")


def test_the_comment_of_the_page_silences(tmp_path: Path) -> None:
    [program] = _BLOCK.findall(before)
    assert found(program, tmp_path) == []
    assert found(program.replace("for the log alone", ""), tmp_path) == ["W101", ALLOW]


# -- what the page says of the first program happens

_ENDS: Final = re.compile(r"The run (?:stops|fails) with\s+`(?P<error>\w+)`|run stops with\s+`(?P<other>\w+)`")
_INPUTS: Final = {
    "day": "monday",
    "event": {"user": "ada"},
    "order_id": 7,
    "orders": ["1", "2", "3"],
    "pages": 3,
}


@dataclass
class Ended:
    state: str
    error: str
    printed: str
    children: list[str]


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ended]]:
    """Run a program's last workflow until it has ended."""
    module = ModuleType("rules_of_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def run(source: str, *, strict: bool = False) -> Ended:
        vars(module).clear()
        vars(module)["__name__"] = "rules_of_the_page"
        exec(compile(source, str(PAGE), "exec", dont_inherit=True), vars(module))
        workflow = [each for each in vars(module).values() if isinstance(each, Workflow)][-1]
        with Harness(strict=strict) as h:
            started = h.start(workflow, *(_INPUTS[name] for name in list(workflow.signature.parameters)[1:]))
            end = h.finish(started)
            return Ended(
                end.state,
                end.error.type if end.error is not None else "",
                capsys.readouterr().out,
                [str(each.state) for each in started.children()],
            )

    yield run
    for each in registry.all():
        if each.function.__module__ == module.__name__:
            registry.registry.unregister(each)


def section(rule: str) -> tuple[str, str, str]:
    """Return the first program of a rule, what is said after it, and the second program."""
    text = next(each for each in SECTIONS if each.startswith(f"{rule}:"))
    bad, good = _BLOCK.findall(text)
    return bad, text.partition(bad)[2].partition("```python")[0], good


ENDING: Final = [each[:4] for each in SECTIONS if _ENDS.search(section(each[:4])[1]) and not each.startswith("W162")]


def test_most_rules_of_operations_are_enforced() -> None:
    assert len(ENDING) >= 10


@pytest.mark.parametrize("rule", ENDING)
def test_the_first_program_ends_as_the_page_says(rule: str, program: Callable[..., Ended]) -> None:
    bad, said, good = section(rule)
    ending = _ENDS.search(said)
    assert ending is not None
    assert program(bad).error == (ending["error"] or ending["other"])
    assert program(good).state == "completed"


def test_state_outside_of_steps_is_gone(program: Callable[..., Ended]) -> None:
    bad, said, good = section("W121")
    assert "prints `[]`" in said
    assert program(bad).printed == "[]\n"
    assert program(good, strict=True).printed == "['first', 'second']\n"
    with pytest.raises(NotDeterministicError, match='step "show"'):
        program(bad.replace('    ctx.sleep("a nap", "3 hours")\n', ""), strict=True)


def test_a_captured_variable_has_its_last_value(program: Callable[..., Ended]) -> None:
    bad, _, good = section("W135")
    assert program(bad).printed.split() == ["3", "3", "3"]
    assert program(good).printed.split() == ["1", "2", "3"]


def test_an_open_child_is_cancelled_with_its_parent(program: Callable[..., Ended]) -> None:
    bad, _, good = section("W163")
    assert program(bad).children == ["cancelled"]
    assert program(good).children == ["completed"]


def test_a_cancelled_run_comes_to_no_operation_in_finally(
    program: Callable[..., Ended], capsys: pytest.CaptureFixture[str]
) -> None:
    bad, said, good = section("W145")
    assert "prints nothing" in said
    assert program(bad).printed == program(good).printed == "tidy\n"
    with Harness() as h:
        workflow = registry.get("rules.tidies_in_finally")
        assert isinstance(workflow, Workflow)
        run = h.start(workflow)
        assert h.run(run).state == "sleeping"
        run.cancel()
        assert h.finish(run).state == "cancelled"
    assert capsys.readouterr().out == ""


def test_swallowed_control_flow_is_taken_for_an_error(
    program: Callable[..., Ended], caplog: pytest.LogCaptureFixture
) -> None:
    bad, _, good = section("W144")
    assert program(bad).state == "completed"
    assert caplog.messages == ["something went wrong"]
    caplog.clear()
    assert program(good).state == "completed"
    assert caplog.messages == []


def test_an_id_is_one_runs_for_ever(program: Callable[..., Ended]) -> None:
    bad, said, _ = section("W162")
    second = "\n".join(
        [
            *("", "", '@workflow(name="rules.two_parents")', "def two_parents(ctx: Context, order_id: int) -> None:"),
            *("    for number in (1, 2):", '        ctx.child(f"parent {number}", PARENT, order_id)'),
        ]
    )
    ended = program(bad + second.replace("PARENT", "same_child"))
    assert (ended.state, ended.error) == ("failed", "ChildFailedError")
    assert "RunConflictError" in said
