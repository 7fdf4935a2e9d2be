"""The check of recorded histories against this process's code: could their runs continue with it?

Owns the replay of a history outside of a worker, the choice of the runs, and the verdict on each. Executes no step, no
rollback handler and nothing else of a run, and writes nothing.
"""

from __future__ import annotations

from durable.replay_check.checking import Facts, check_history
from durable.replay_check.findings import Decision, Finding, FindingKind, Verdict
from durable.replay_check.replaying import RecordedRun

__all__ = ["Decision", "Facts", "Finding", "FindingKind", "RecordedRun", "Verdict", "check_history"]
