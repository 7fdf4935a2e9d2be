"""RQ's own command executes runs, with its classes and with durable's, which it imports before Django is set up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.workflows import bystander
from tests.support.processes import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("kind", ["durable.rq_workers.SimpleWorker", "durable.rq_workers.Worker", "rq.worker.Worker"])
def test_rq_worker_executes_runs(child_environment: dict[str, str], kind: str) -> None:
    handle = bystander.using(id="stock").start(1)
    command = [sys.executable, "-m", "rq.cli", "worker", "default", "--burst", "--worker-class", kind]
    command += ["--url", child_environment["REDIS_URL"], "--serializer", "rq.serializers.JSONSerializer"]
    environment = {**child_environment, "DJANGO_SETTINGS_MODULE": "tests.e2e.settings"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert handle.state == "completed", done.stderr
