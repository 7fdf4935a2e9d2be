"""What the trials of one test have shown, compared with its undisturbed run.

Owns what counts as done twice, and which remedy fits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
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
    run = names.get((place.harness, place.run), place.run)
    return Place(place.harness, run, place.workflow, place.location, place.purpose)


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
