"""Each listing on each surface: the command line prints what REST answers."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from durable.models import WorkerProcess
from durable.operations import holds
from tests.api.conftest import Api
from tests.cli.conftest import Shell
from tests.support.subjects import a_failure, a_hung_step, a_limit, a_rate, a_schedule

pytestmark = [pytest.mark.django_db, pytest.mark.redis]

#: What passes between two looks.
_AGES: Final = ("seconds",)


def a_worker() -> None:
    now = timezone.now()
    WorkerProcess.objects.create(
        name="w1", host="one", pid=7, queues=["default"], slots=2, started_at=now, last_seen_at=now
    )


def a_pause() -> None:
    holds.pause_queue("default")


@pytest.fixture
def api() -> Api:
    return Api(User.objects.create_superuser("ada"))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


@pytest.mark.parametrize(
    ("ready", "words", "path"),
    [
        (a_limit, "limits", "/limits"),
        (a_rate, "rates", "/rates"),
        (a_pause, "queues", "/queues"),
        (a_worker, "workers", "/workers"),
        (a_hung_step, "running", "/running"),
        (a_failure, "causes", "/causes"),
        (a_schedule, "schedules", "/schedules"),
    ],
)
def test_the_command_line_prints_what_rest_answers(ready: Any, words: str, path: str, api: Api, shell: Shell) -> None:
    ready()
    answered = api.get(path).json()["results"]
    assert answered
    printed = shell(*words.split(), "-o", "json").all_json
    assert [_still(each) for each in printed] == [_still(each) for each in answered]
    assert [list(each) for each in printed] == [list(each) for each in answered], "in the same order"


@pytest.mark.parametrize(
    ("ready", "words", "path"),
    [
        (a_limit, "limits carrier", "/limits/carrier"),
        (a_rate, "rates calls", "/rates/calls"),
        (a_schedule, "schedules nightly", "/schedules/nightly"),
    ],
)
def test_one_of_them_is_the_same_on_both(ready: Any, words: str, path: str, api: Api, shell: Shell) -> None:
    ready()
    assert shell(*words.split(), "-o", "json").json == api.get(path).json()


def _still(data: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in data.items() if name not in _AGES}
