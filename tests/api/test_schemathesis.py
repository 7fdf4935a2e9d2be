"""What the OpenAPI document says is so.

A generator of requests finds no 5xx, no answer that the document does not have, and no endpoint that answers without
permission. It asks a live server with runs of every kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.test import override_settings
from rest_framework.authtoken.models import Token

from durable import get_run
from durable.models import Cause, Question, QueueMessage
from durable.operations import bulk
from tests.api.workflows import add, approve, ask, fail, loop
from tests.faults.passing import pass_once

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

PARTS = 6  # of the paths, each of which has a process of its own and its own LIMIT
EXAMPLES = 6  # of each operation and phase
SEED = 20260101
LIMIT = 300  # seconds

# What is left out, each with its reason.
LEFT_OUT = {
    "positive_data_acceptance": "a request of the right form may still ask for what there is not, or for what cannot be done",
}


def make_runs() -> None:
    """Runs in most states, with histories and messages."""
    for handle in (
        add.using(id="completed").start(1),
        fail.using(id="failed").start(),
        ask.using(id="waiting").start(),
        approve.using(id="asking").start(),
        approve.using(id="asking by a form").start("tests.people.forms:RefundForm"),
    ):
        pass_once(handle)
    get_run("waiting").send("other", {"a": [1, None, "\ud800\x00"]})
    QueueMessage.objects.update(id="message")
    pass_once(loop.using(id="sleeping").start(3))
    pass_once(loop.using(id="paused").start(1))
    get_run("paused").pause()
    add.using(id="pending").start(1)
    pass_once(add.using(id="odd é%").start(float("nan"), 2))
    bulk.apply("wake", ["sleeping", "nobody"], as_id="bulk")


#: What the parameters and fields of these names are taken from, so that requests meet what there is.
THERE_IS = {
    "run_id": ["completed", "failed", "waiting", "sleeping", "paused", "pending", "odd é%", "nobody"],
    "location": ["add", "break", "rest", "step 1", "nowhere"],
    "name": ["tests.api.add", "shop.fulfil", "nowhere"],
    "message_id": ["message", "nothing"],
    "bulk_id": ["bulk", "nothing"],
    "workflow": ["tests.api.add", "tests.api.ask", "nowhere"],
}


#: Parameters of which each text is one: a stream may be that of a step that is still to come.
ANYTHING = {("/runs/{run_id}/stream/{location}", "location")}


def described(tmp_path: Path, part: int) -> Path:
    """A part of the committed document, with what there is here: runs, workflows, and a way to sign in."""
    document: dict[str, Any] = yaml.safe_load((settings.BASE_DIR / "docs" / "openapi.yaml").read_text())
    document["paths"] = dict(sorted(document["paths"].items())[part::PARTS])
    document["components"]["securitySchemes"] = {"token": {"type": "apiKey", "in": "header", "name": "Authorization"}}
    document["security"] = [{"token": []}]
    there_is = {
        **THERE_IS,
        "cause": [*Cause.objects.values_list("fingerprint", flat=True), "nothing"],
        "question_id": [*Question.objects.values_list("question_id", flat=True), "nothing"],
    }
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path" and (path, parameter["name"]) not in ANYTHING:
                    parameter["schema"]["enum"] = there_is[parameter["name"]]
    for name in ("DurableStartFormRequest", "DurableReplayFormRequest"):
        for field, schema in document["components"]["schemas"][name]["properties"].items():
            if field in THERE_IS:
                schema["enum"] = THERE_IS[field]
    file = tmp_path / "openapi.json"  # it is read much faster than YAML
    file.write_text(json.dumps(document))
    return file


#: Of the methods that an address does not have, one is enough. Values of answers are not sent again: the tool cannot
#: write the lone surrogate of a message's body.
CONFIG = """
[phases.coverage]
unexpected-methods = ["PUT"]

[phases.coverage.extra-data-sources]
responses = false

[phases.fuzzing.extra-data-sources]
responses = false
"""


@override_settings(DURABLE={"API_MAX_WAITING": 0})  # long polls are answered at once, as by a server that has many
@pytest.mark.parametrize("part", range(PARTS))
def test_generated_requests_find_nothing(live_server: Any, tmp_path: Path, part: int) -> None:
    with transaction.atomic():
        token = Token.objects.create(user=User.objects.create_superuser("root", password=None)).key
    make_runs()
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config)),
        *("run", str(described(tmp_path, part))),
        *("--url", f"{live_server.url}/api", "-H", f"Authorization: Token {token}"),
        *("--max-examples", str(EXAMPLES), "--seed", str(SEED), "--phases", "examples,coverage,fuzzing"),
        *("--checks", "all", "--exclude-checks", ",".join(LEFT_OUT), "--continue-on-failure"),
        *("--suppress-health-check", "all", "--no-shrink", "--warnings", "off", "--generation-database", "none"),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
