"""The second replay: the code of a run goes through its records once more, in other surroundings.

Owns noticing that code between operations decides by something else than the records: the clock, random numbers, the
order of a set, what a step has left in a variable. Executes no step and writes nothing.
"""

from __future__ import annotations

from durable.testing.replays.second import Replay, different, replay
from durable.testing.replays.traces import NotDeterministicError, Trace

__all__ = ["NotDeterministicError", "Replay", "Trace", "different", "replay"]
