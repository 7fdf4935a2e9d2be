"""Plays a scenario's actions on this engine through the public harness, and gives the trace.

A `Player` may be set to crash once, at a given commit, before or after it; it resumes in a fresh pass at the same
moment.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from durable.testing import Harness, SimulatedCrash
from tests.conformance.grammar import Advance, Recover, Run, SendMessage
from tests.conformance.interpreter import START, WORKFLOWS
from tests.conformance.recorder import Recorder, recording
from tests.conformance.scenarios import Scenario
from tests.conformance.trace import PassTrace, Trace, entry_traces, pass_trace

Colour = Literal["sync", "async"]


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies at the run's commit with this number (from 1), before it or after it."""

    commit: int
    when: Literal["before", "after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a scenario gave: its trace, and how many commits the run's passes made."""

    trace: Trace
    commits: int
    crashed: bool


def play(scenario: Scenario, colour: Colour, crash: Crash | None = None) -> Played:
    """Run the scenario's program in a fresh harness and do to it what the scenario says.

    The harness replays each pass a second time only in plays without a crash: a crash is resumed in a fresh pass
    anyway.
    """
    with Harness(now=START, short_sleep=0, strict=crash is None) as harness:
        first = harness.commits
        handle = harness.start(WORKFLOWS[colour], scenario.source, id=scenario.id)
        with recording(scenario.id, lambda: harness.commits) as recorder:
            player = _Player(harness, handle, recorder)
            with nullcontext() if crash is None else harness.crash_at(crash.commit, when=crash.when):
                passes = player.perform(scenario)
        return Played(
            trace=Trace(passes=passes, entries=entry_traces(handle.history())),
            commits=harness.commits - first,
            crashed=player.crashed,
        )


def perform(harness: Harness, handle: Any, recorder: Recorder, scenario: Scenario) -> None:
    """Do to a run of the scenario's program what the scenario says."""
    _Player(harness, handle, recorder).perform(scenario)


class _Player:
    def __init__(self, harness: Harness, handle: Any, recorder: Recorder) -> None:
        self.harness = harness
        self.handle = handle
        self.recorder = recorder
        self.crashed = False

    def perform(self, scenario: Scenario) -> tuple[PassTrace, ...]:
        """Do the actions until the run completes.

        While it is failed nothing is done to it before it is recovered; where it would run without that, the traces
        end.
        """
        passes: list[PassTrace] = []
        state = "pending"
        for action in scenario.actions:
            if state == "completed" or (state == "failed" and action == Run()):
                break
            match action:
                case Recover():
                    if state == "failed":
                        self.handle.recover()
                        state = "recovered"
                case _ if state == "failed":
                    pass
                case Run():
                    passes.append(self._pass())
                    state = passes[-1].state
                case Advance():
                    self.harness.advance(timedelta(milliseconds=action.ms))
                case SendMessage():
                    self.harness.send(self.handle.id, action.queue, action.body)
        return tuple(passes)

    def _pass(self) -> PassTrace:
        calls, rollbacks = len(self.recorder.calls), len(self.recorder.rollbacks)
        seen = self._run()
        return pass_trace(
            seen,
            start=START,
            calls=[(call.path, call.number) for call in self.recorder.calls[calls:]],
            rollbacks=[(each.path, each.output) for each in self.recorder.rollbacks[rollbacks:]],
        )

    def _run(self) -> Any:
        try:
            return self.harness.run(self.handle.id)
        except SimulatedCrash:
            self.crashed = True
            # What was called since the last commit has no record, and will be called again.
            self.recorder.forget_since(self.harness.commits)
        return self.harness.run(self.handle.id)
