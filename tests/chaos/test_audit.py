"""The audit of families and schedules judges ticks that are no longer kept."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from durable.models import Run, Schedule, Tick
from tests.chaos.families import audit
from tests.support.rows import broken

pytestmark = [pytest.mark.postgres, pytest.mark.django_db]

WRONG = "a run of a schedule has no tick"


def test_a_tick_that_has_been_deleted_is_not_missing() -> None:
    audit.install()
    now = timezone.now()
    schedule = Schedule.objects.create(name="every second", workflow="chaos.tick", rule="every 1 second")
    for number in (1, 2, 3):
        run = Run.objects.create(id=f"run-{number}", workflow="chaos.tick", input="[]", created_at=now)
        moment = now + timedelta(seconds=number)
        schedule.ticks.create(number=number, moment=moment, outcome="started", run_id=run.id, decided_at=moment)
    Tick.objects.filter(number=1).delete()  # the newest are kept
    rules = {what: audit._NEVER[what] for what in audit._NEVER if "tick" in what or "moment" in what}
    assert list(broken(rules)) == []
    Run.objects.create(id="stray", workflow="chaos.tick", input="[]", created_at=now)
    assert list(broken(rules)) == [f"{WRONG}: stray"]
