"""How to recognize durable's own runs: bulks, and runs that send alerts."""

from __future__ import annotations

from typing import Final

from durable.core.location import awaited_queues
from durable.core.records import ENDED

#: The workflow whose runs send alerts, one for each alert and target.
ALERT: Final = "durable.alert"


#: The workflow that performs background bulks with the permissions of the user who requested them.
BULK: Final = "durable.bulk"

#: The message queue of a bulk that its canary has stopped: True to go on with the rest, anything else to stop there.
DECISION: Final = "decision"

#: The prefix of the names of durable's own workflows.
INTERNAL: Final = "durable."

#: The decision to go on and to try the next runs alone first; True goes on with all, False stops.
CANARY: Final = "canary"


def is_stopped(workflow: str, state: str, waiting_for: str) -> bool:
    """Return whether a run is a bulk that its canary has stopped and that waits for a decision."""
    return workflow == BULK and state not in ENDED and awaited_queues(state, waiting_for) == [DECISION]


def replays_prefix(bulk_id: str) -> str:
    """Return the prefix of the ids of the runs that a bulk creates by replaying others."""
    return f"{bulk_id[:150]}-"
