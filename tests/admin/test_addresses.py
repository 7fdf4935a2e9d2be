"""Every address of the admin, walked from the URLconf: who may ask it, and that the program that measures pages asks it."""

from __future__ import annotations

import pytest
from django.utils import timezone

from durable.models import Cause, OperatorAction, Run, SavedView
from tests.tools.scale.requests import every_request

pytestmark = pytest.mark.django_db


def test_the_program_that_measures_pages_asks_every_address() -> None:
    now = timezone.now()
    Cause.objects.create(fingerprint="cause-0", place="charge", error_type="Error", first_seen_at=now)
    OperatorAction.objects.create(source="admin", action="cancel", outcome="done", created_at=now)
    SavedView.objects.create(name="mine", owner_key="1", created_at=now)
    Run.objects.create(id="r", workflow="w", queue="q", input="[]", state="running", created_at=now)
    asked = {each.address for each in every_request()}  # raises LookupError for an address that it lacks
    assert len(asked) > 200
