"""The second replay: the code of a run is replayed once more in a changed environment.

Detects code between operations that decides by something other than the records: the clock, random numbers, the order
of a set, a variable set by a step. Executes no step and writes nothing.
"""

from __future__ import annotations

from durable.testing.replays.second import NotDeterministicError, Replay, Trace, different, replay

__all__ = ["NotDeterministicError", "Replay", "Trace", "different", "replay"]
