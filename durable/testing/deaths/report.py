"""What the trials of each test have shown, compared with its undisturbed run, and the report of a session: the findings
of all tests in groups, for a terminal, as Markdown and as JSON.

Owns what counts as done twice, and which remedy fits.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from durable.conf import conf
from durable.testing.deaths.trials import BETWEEN_STEPS, Effect, Place, Point, Trial

#: What was seen, the most serious first. The first three fail the session.
Verdict = Literal["twice", "ended", "between", "failed", "same_key", "doubtful", "stand_in", "again"]
FAILING: Final[frozenset[str]] = frozenset({"twice", "ended", "between"})
_LENGTH: Final = 200  # characters of an error
#: What differs from one run of a test to the next: ids and numbers.
_VARYING: Final = re.compile(r"\b(?:[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{12,}|\d+)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was seen in one trial of one test.

    `effect` is what was done again, `keys` the idempotency keys of the first time and of the second.
    """

    verdict: Verdict
    workflow: str = ""
    step: str = ""
    effect: str = ""
    keys: tuple[str, ...] = ()
    mend: str = ""
    test: str = ""
    death: str = ""

    @property
    def fails(self) -> bool:
        return self.verdict in FAILING

    def group(self) -> tuple[str, ...]:
        """Return what findings have in common that are reported as one."""
        return (self.verdict, self.workflow, _general(self.step), _general(self.effect), self.mend)


@dataclass(slots=True, kw_only=True)
class TestDeaths:
    """One test that was executed again: how many commits it makes, which deaths it had, what they showed."""

    __test__ = False  # pytest collects classes of this name in test modules

    test: str
    commits: int = 0
    deaths: int = 0
    left_out: int = 0
    why_left_out: str = ""
    not_reached: int = 0
    findings: list[Finding] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, data: dict[str, Any]) -> TestDeaths:
        found = [Finding(**{**each, "keys": tuple(each["keys"])}) for each in data["findings"]]
        return cls(**{**data, "findings": found})


def findings_of(test: str, base: Trial, trial: Trial, error: str) -> Iterator[Finding]:
    """Yield what a trial shows. `error` is that with which the test has failed, "" if it has passed."""
    assert trial.death is not None
    death = _point_in_words(trial.death, base)
    common: dict[str, Any] = {"test": test, "death": death}
    calls, usual_calls = _by_place(trial.calls), _calls_before(base, trial)
    effects, usual = _by_place(trial.effects), _effects_before(base, trial)
    for place in {**calls, **effects}:
        lives = {each.life for each in calls.get(place, ())}
        if place.location != BETWEEN_STEPS:
            if lives != {0, 1} or len(calls[place]) <= usual_calls[place]:
                continue
            is_stand_in = any(each.is_stand_in for each in calls[place])
        repeated = list(_repeated(effects.get(place, []), usual, is_atomic=place in trial.atomic))
        where: dict[str, Any] = {"workflow": place.workflow, "step": _step_in_words(place)}
        for first, second in repeated:
            verdict = _verdict(first, second)
            mend = _mend(first, second) if verdict in FAILING else ""
            keys = () if first.kind in ("insert", "update", "start") else (first.key or "none", second.key or "none")
            yield Finding(verdict=verdict, **where, effect=first.label, keys=keys, mend=mend, **common)
        if not repeated and place.location != BETWEEN_STEPS:
            yield Finding(verdict="stand_in" if is_stand_in else "again", **where, **common)
    yield from _bad_ends(base, trial, common)
    if error:
        yield Finding(verdict="failed", effect=error, **common)


def _verdict(first: Effect, second: Effect) -> Verdict:
    if first.kind != "start" and first.key is not None and first.key == second.key:
        return "same_key"
    if first.place.location == BETWEEN_STEPS:
        return "between"
    return "doubtful" if first.is_doubtful or first.is_harmless else "twice"


def _repeated(
    effects: Sequence[Effect], usual: Counter[tuple[Place, str]], *, is_atomic: bool
) -> Iterator[tuple[Effect, Effect]]:
    """Yield, for each effect that was made in both lives and more often than usual, the first one and the one again.

    Rows of an atomic step, and runs that it started, went with its transaction. A second effect with the key of a first
    one is its pair; of the others the first that has none.
    """
    by_label: dict[tuple[str, str], list[Effect]] = {}
    for each in effects:
        if not (is_atomic and each.kind in ("insert", "update", "start")):
            by_label.setdefault((each.kind, _general(each.label)), []).append(each)
    for (_, label), same in by_label.items():
        before, after = [each for each in same if each.life == 0], [each for each in same if each.life == 1]
        if not before or not after or len(same) <= usual[same[0].place, label]:
            continue
        keys = {each.key for each in before}
        unlike = [each for each in after if each.key is None or each.key not in keys]
        if unlike:
            yield before[0], unlike[0]
        elif same[0].kind != "update":  # the same numbers in the same row: it is written twice, and done once
            yield next(each for each in before if each.key == after[0].key), after[0]


def _by_place(things: Iterable[Any]) -> dict[Place, list[Any]]:
    found: dict[Place, list[Any]] = {}
    for each in things:
        found.setdefault(each.place, []).append(each)
    return found


def _calls_before(base: Trial, trial: Trial) -> Counter[Place]:
    """Return how often each place was called in the undisturbed run, under the ids of the trial's runs."""
    names = _same_runs(base, trial)
    return Counter(_under(each.place, names) for each in base.calls)


def _effects_before(base: Trial, trial: Trial) -> Counter[tuple[Place, str]]:
    names = _same_runs(base, trial)
    return Counter((_under(each.place, names), _general(each.label)) for each in base.effects)


def _same_runs(base: Trial, trial: Trial) -> dict[tuple[int, str], str]:
    """Return the trial's id of each run of the undisturbed one: the same, or that in the same place of the order."""
    names = {}
    for harness, runs in base.runs.items():
        others = trial.runs.get(harness, [])
        left = iter([each for each in others if each not in runs])
        for run in runs:
            names[harness, run] = run if run in others else next(left, run)
    return names


def _under(place: Place, names: dict[tuple[int, str], str]) -> Place:
    return replace(place, run=names.get((place.harness, place.run), place.run))


def _bad_ends(base: Trial, trial: Trial, common: dict[str, Any]) -> Iterator[Finding]:
    """Yield the runs that fail after the death and do not without it."""
    names = _same_runs(base, trial)
    usual = {(harness, names.get((harness, run), run)): end for (harness, run), end in base.ends.items()}
    workflows = {(each.place.harness, each.place.run): each.place.workflow for each in trial.calls}
    for which, (state, error) in trial.ends.items():
        before = usual.get(which)
        if state == "failed" and before is not None and before[0] != "failed":
            yield Finding(
                verdict="ended",
                workflow=workflows.get(which, ""),
                effect=shortened(f"the run is {state} instead of {before[0]}: {error}"),
                mend="let the steps bear being called again, and the code between them decide the same from the records",
                **common,
            )


def _mend(first: Effect, second: Effect) -> str:
    if first.place.location == BETWEEN_STEPS:
        return "do it in a step: code between steps is executed again by each pass"
    match first.kind:
        case "insert" | "update" if first.database == conf.DATABASE:
            return "atomic=True: the rows and the record of the step are then one commit"
        case "insert" | "update":
            return (
                f'a unique key and get_or_create: the rows are in the database "{first.database}", and durable\'s records '
                f'in "{conf.DATABASE}", so that atomic=True does not reach them'
            )
        case "start":
            return (
                "an id made from the input or from current_step().idempotency_key, `using(id=...)`: a second start is "
                "then the same run; or ctx.start_child"
            )
        case "mail":
            return "once=True with verify=, which asks the mail service whether it was sent"
    if first.key is not None and second.key is not None:
        return "send current_step().idempotency_key, which is the same for each attempt"
    return "send current_step().idempotency_key with it, or use once=True with verify="


def _step_in_words(place: Place) -> str:
    if place.location == BETWEEN_STEPS:
        return ""
    return f"{place.location} (rollback)" if place.purpose == "rollback" else place.location


def _point_in_words(point: Point, base: Trial) -> str:
    commits = base.commits()
    of = "" if len(commits) < 2 else f" of harness {point.harness + 1}"
    return f"{point.when} commit {point.commit} of {commits[point.harness]}{of}"


def shortened(text: str) -> str:
    """Return the first line of an error's text, as far as a report shows it."""
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= _LENGTH else f"{line[: _LENGTH - 1]}…"


def _general(text: str) -> str:
    return _VARYING.sub("…", text)


# -- the report

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
