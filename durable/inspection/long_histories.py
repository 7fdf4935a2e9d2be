"""Counts of long histories that the process of the sweep makes ahead of the pages."""

from __future__ import annotations

from datetime import datetime

from durable.inspection.events import count_events
from durable.inspection.history_counts import count_noted
from durable.inspection.places import count_places
from durable.inspection.progress import count_progress


def count_long_histories(now: datetime) -> None:
    """Count the histories that workers have noted as long, and whose runs rest; for a moment only."""
    count_noted(now, {"progress": count_progress, "places": count_places, "events": count_events})
