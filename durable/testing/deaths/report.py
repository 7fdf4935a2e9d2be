"""The report of a session: the findings of all tests in groups, for a terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from durable.testing.deaths.findings import FAILING, Finding, TestDeaths, Verdict

_SHOWN: Final = 3  # tests that are named for a finding
_LISTED: Final = 20  # lines of a list in the terminal
_KEY: Final = 12  # characters of a key in a text; JSON has all of them
FORMATS: Final = (".json", ".md")

_HEADS: Final[dict[Verdict, str]] = {
    "same_key": "Done again with the same key, so that the receiver can tell",
    "doubtful": "Done again, and maybe harmless: look whether the second time changes something",
    "stand_in": "Called again, with a mock in place of the function, so that what it does was not seen",
    "again": "Called again without an effect that was seen, which is normal",
    "failed": "Tests that fail after a death: they count calls, look before a retry is due, or the workflow does not bear it",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Findings that are one: the same thing of the same step, after several deaths or in several tests."""

    findings: Sequence[Finding]

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def tests(self) -> list[str]:
        return list(dict.fromkeys(each.test for each in self.findings))

    def title(self) -> str:
        """Return what was done, by which step, in one line."""
        found = self.first
        step = f'step "{found.step}"' if found.step else "between its steps" if found.verdict != "ended" else "its run"
        where = f"{found.workflow}, {step}" if found.workflow else ""
        match found.verdict:
            case "twice" | "between" | "same_key" | "doubtful":
                return f"{where}: {found.effect}, twice"
            case "ended":
                return f"{found.workflow}: {found.effect}"
            case "failed":
                return f"{found.test}: {found.effect}"
            case _:
                return where

    def keys(self) -> str:
        """Return the keys of the first time and of the second in words; "" if the thing has none."""
        if not (keys := self.first.keys):
            return ""
        if keys == ("none", "none"):
            return "without an idempotency key"
        first, second = (each if len(each) <= _KEY else f"{each[:_KEY]}…" for each in keys)
        return f"with the key {first} both times" if keys[0] == keys[1] else f"with the keys {first} and {second}"

    def where(self) -> str:
        """Return after which death it was seen, in which tests."""
        tests = self.tests
        more = f" and {len(tests) - _SHOWN} more tests" if len(tests) > _SHOWN else ""
        return f"after a death {self.first.death}, in {', '.join(tests[:_SHOWN])}{more}"


class Report:
    """What `pytest --durable-crashes` says at the end of a session."""

    def __init__(self) -> None:
        self.tests: list[TestDeaths] = []
        #: What was lost on the way, such as the results of a process of pytest-xdist that has died.
        self.lost: list[str] = []

    def groups(self, *verdicts: Verdict) -> list[Group]:
        """Return the findings of these verdicts in groups, in the order in which they were seen."""
        grouped: dict[tuple[str, ...], list[Finding]] = {}
        for test in self.tests:
            for each in test.findings:
                if each.verdict in verdicts:
                    key = ("failed", each.test) if each.verdict == "failed" else each.group()
                    grouped.setdefault(key, []).append(each)
        return [Group(each) for each in grouped.values()]

    @property
    def failing(self) -> list[Group]:
        return self.groups("twice", "between", "ended")

    def seen(self, verdict: Verdict) -> list[Group]:
        """Return the groups of a verdict, without steps for which something more serious is reported."""
        groups = self.groups(verdict)
        if verdict not in ("again", "stand_in"):
            return groups
        said = {
            (each.workflow, each.step)
            for test in self.tests
            for each in test.findings
            if each.verdict not in ("again", "stand_in")
        }
        return [each for each in groups if (each.first.workflow, each.first.step) not in said]

    def count(self) -> str:
        """Return how much was tried, in a sentence."""
        tests = [each for each in self.tests if each.deaths]
        deaths = sum(each.deaths for each in tests)
        if not deaths:
            return "No test with commits of a harness has passed, so none was executed again."
        return (
            f"{len(tests):,} {_plural('test was', 'tests were', len(tests))} executed again with {deaths:,} "
            f"{_plural('death', 'deaths', deaths)}, before and after each commit."
        )

    def left_out(self) -> Iterator[str]:
        """Yield a line for each test of which deaths were left out, and for what was lost."""
        for each in self.tests:
            if each.left_out:
                yield f"{each.test}: {each.left_out:,} deaths, {each.why_left_out}"
            if each.not_reached:
                yield f"{each.test}: {each.not_reached:,} deaths were not reached when it was executed again"
        yield from self.lost

    def verdict(self) -> str:
        """Return the last line."""
        number = len(self.failing)
        if number:
            return f"{number:,} {_plural('thing does', 'things do', number)} not bear a death."
        return (
            "Nothing that was seen is done twice without the same key."
            if any(each.deaths for each in self.tests)
            else ""
        )

    def lines(self) -> Iterator[tuple[str, bool]]:
        """Yield the lines for a terminal; the flag says whether the line is a failing finding."""
        yield self.count(), False
        for group in self.failing:
            yield "", False
            yield f"{group.title()}{', ' + keys if (keys := group.keys()) else ''}", True
            yield f"    {group.where()}", False
            yield f"    fix: {group.first.mend}", False
        for head, lines in self._lists():
            yield "", False
            yield f"{head}:", False
            yield from ((f"    {line}", False) for line in lines[:_LISTED])
            if len(lines) > _LISTED:
                yield f"    and {len(lines) - _LISTED:,} more", False
        if verdict := self.verdict():
            yield "", False
            yield verdict, bool(self.failing)

    def _lists(self) -> Iterator[tuple[str, list[str]]]:
        for verdict, head in _HEADS.items():
            if groups := self.seen(verdict):
                yield head, [self._line(each) for each in groups]
        if left_out := list(self.left_out()):
            yield "Left out", left_out

    @staticmethod
    def _line(group: Group) -> str:
        if group.first.verdict != "failed":
            return f"{group.title()}{', ' + keys if (keys := group.keys()) else ''}"
        more = len(group.findings) - 1
        others = f" and {more:,} {_plural('other', 'others', more)}" if more else ""
        return f"{group.title()}, after a death {group.first.death}{others}"

    def markdown(self) -> str:
        parts = ["# Deaths", "", self.count()]
        for group in self.failing:
            keys = f", {group.keys()}" if group.keys() else ""
            parts += ["", f"## {_escaped(group.title())}", "", _escaped(f"Seen {group.where()}{keys}.")]
            parts += ["", f"Fix: {_escaped(group.first.mend)}."]
        for head, lines in self._lists():
            parts += ["", f"## {head}", "", *(f"- {_escaped(line)}" for line in lines)]
        if verdict := self.verdict():
            parts += ["", verdict]
        return "\n".join([*parts, ""])

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON: the groups by verdict, and each test."""
        verdicts: tuple[Verdict, ...] = ("twice", "between", "ended", *_HEADS)
        return {
            "version": 1,
            "fails": bool(self.failing),
            "findings": [
                {
                    "verdict": verdict,
                    "fails": verdict in FAILING,
                    "workflow": group.first.workflow,
                    "step": group.first.step,
                    "effect": group.first.effect,
                    "keys": list(group.first.keys),
                    "mend": group.first.mend,
                    "tests": group.tests,
                    "deaths": [{"test": each.test, "death": each.death} for each in group.findings],
                }
                for verdict in verdicts
                for group in self.groups(verdict)
            ],
            "tests": [
                {key: value for key, value in each.as_json().items() if key != "findings"} for each in self.tests
            ],
            "lost": self.lost,
        }

    def write(self, path: Path) -> None:
        """Write the report to a file: JSON or Markdown, by its name."""
        text = json.dumps(self.as_json(), indent=2) + "\n" if path.suffix == ".json" else self.markdown()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _plural(one: str, many: str, number: int) -> str:
    return one if number == 1 else many


def _escaped(text: str) -> str:
    for character in "\\`*_<>|[]#":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
