"""A process that is killed with SIGKILL between two statements of its look tells of nothing, or of everything, once."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
from django.db import close_old_connections
from django.utils import timezone

from durable import Schedule
from durable.core.registry import ALERT
from durable.models import AlertState, Run

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
]

#: Looks in forks of one process, the first of which is killed after one statement, the next after two, and so on.
KILLED = """
import os, signal
import django
django.setup()
from datetime import timedelta
from django.conf import settings
from django.db import connection, connections
from django.test import override_settings
from django.utils import timezone
from durable.alerts.watch import Watch
from durable.core.registry import ALERT
from durable.models import AlertState, Run

target = {"type": "call", "function": "tests.alerts.test_alerts.called"}
alerts = {"targets": [target, target], "events": ["schedule"]}
override_settings(DURABLE={**settings.DURABLE, "ALERTS": alerts}).enable()

def look(most):
    left = [most]
    def counting(execute, *call):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(*call)
    with connection.execute_wrapper(counting):
        Watch(timedelta(0)).look(timezone.now())
    os._exit(0)

for most in range(1, 200):
    connections.close_all()
    pid = os.fork()
    if not pid:
        look(most)
    status = os.waitpid(pid, 0)[1]
    print(most, status, AlertState.objects.count(), Run.objects.filter(workflow="durable.alert").count(), flush=True)
    if not status:
        break
"""


def test_a_look_that_is_killed_anywhere_tells_once(child_environment: dict[str, str]) -> None:
    schedule = Schedule.objects.create(name="late", workflow="tests.gone", rule="every 1 day")
    Schedule.objects.filter(pk=schedule.pk).update(due_at=timezone.now() - timedelta(days=1))
    done = subprocess.run(
        [sys.executable, "-c", KILLED], env=child_environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    looks = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(looks) > 5, f"{done.stdout}{done.stderr[-2000:]}"
    assert looks[-1][1:] == (0, 1, 2), f"{done.stdout}{done.stderr[-2000:]}"
    assert {(states, runs) for _, status, states, runs in looks if status} <= {(0, 0), (1, 2)}
    close_old_connections()
    assert AlertState.objects.get().number == 1
    assert Run.objects.filter(workflow=ALERT).count() == 2
