"""A run that is due on a queue without a worker is moved to one with a worker, and completes there."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings

from durable.models import OperatorAction
from tests.e2e.workers import Workers
from tests.e2e.workflows import bystander

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def test_a_run_on_a_queue_that_nobody_serves_is_moved_and_completes(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "exports": settings.RQ_QUEUES["default"]}):
        lost = bystander.using(id="lost", queue="exports").start(1)
    with Workers(1, child_environment, tmp_path / "workers.log"):
        bystander.using(id="served").start(2).result(timeout=120)  # the worker has looked for runs
        assert lost.state == "pending"
        lost.move("default")
        lost.result(timeout=120)
    assert lost.info().queue == "default"
    assert OperatorAction.objects.get(run_id="lost").detail == 'from the queue "exports" to "default"'
