"""The measurements, a file each. Importing this makes them known, in the order of a round."""

from tests.benchmarks.measures import (  # noqa: I001  # the order of a round: what is compared stands side by side
    bare,
    steps,
    starts,
    in_process,
    runs,
    concurrency,
    snapshot,
    replay,
    joins,
    messages,
    timers,
    schedules,
    loops,
    fan_out,
    growth,
    pages,
)

__all__ = [
    "bare",
    "concurrency",
    "fan_out",
    "growth",
    "in_process",
    "joins",
    "loops",
    "messages",
    "pages",
    "replay",
    "runs",
    "schedules",
    "snapshot",
    "starts",
    "steps",
    "timers",
]
