"""The saves of running steps, for users who may see payloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from durable.conf import conf
from durable.core.places import Place
from durable.inspection.payloads import payload
from durable.models import Run, StepSave


def saved_by(run: Run, locations: Sequence[str]) -> dict[str, Any]:
    """Return the newest save of each step at these locations that has one, decoded and redacted; one statement.

    Show it to users with `view_payload`. A completed step has none: its commit deletes it.
    """
    if not locations:
        return {}
    found = StepSave.objects.using(conf.DATABASE).filter(run=run, location__in=list(locations))
    return {
        each.location: payload(
            run.workflow, f"saved:{each.location}", each.details, Place(run.id, "saved", each.location)
        )
        for each in found.order_by()
    }
