"""Each verb of the catalogue on each surface: who may, what is logged, and what a name, a state or a look refuses.

What a verb does is tested beside its operation. Here the three engines are: one that forgets a check fails for each
verb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import Any, Final

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from durable import get_run
from durable.admin.text import as_key
from durable.inspection.wording import told
from durable.models import (
    Activity,
    DatabaseMark,
    EntryMetadata,
    Hold,
    Limit,
    OperatorAction,
    RateKey,
    RateLimit,
    Run,
    Schedule,
)
from durable.operations import holds, limits, rates
from durable.operations.audit import REFUSALS, needed_by
from durable.operations.catalogue import DATABASE, LIMIT, QUEUE, RATE, SCHEDULE, VERBS, WORKFLOW
from durable.operations.schedules import verbs as schedules
from durable.operations.verbs import RUN, RUN_VERBS, Verb
from tests.api.conftest import Api
from tests.api.workflows import add
from tests.cli.conftest import Shell
from tests.faults.passing import pass_once
from tests.support.subjects import (
    a_database,
    a_failure,
    a_held_step,
    a_hung_step,
    a_limit,
    a_rate,
    a_restored_database,
    a_schedule,
    a_sleeper,
)

pytestmark = [pytest.mark.django_db, pytest.mark.redis]

FAR: Final = timezone.now().replace(year=2100)
REASON: Final = "the bank is down"
PAGES: Final = {
    QUEUE: "queue_hold",
    WORKFLOW: "workflow_hold",
    LIMIT: "limit_act",
    RATE: "limit_act",
    SCHEDULE: "schedule_act",
    DATABASE: "database_act",
    RUN: "act",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a verb is tried: on which name, with which options on each surface, and whether it was done.

    `ready` makes its subject as the verb wants it, `refusing` as it refuses it.
    """

    name: str
    body: Mapping[str, Any] = field(default_factory=dict)
    form: Mapping[str, Any] | None = None  # as the body
    words: tuple[str, ...] = ()
    is_done: Callable[[], object] | None = None  # None: what it takes is too much for here
    ready: Callable[[], object] = lambda: None
    refusing: Callable[[], object] | None = None


def in_state(state: str) -> Callable[[], bool]:
    return lambda: Run.objects.filter(pk="a", state=state).exists()


def after(*steps: Callable[[], object]) -> Callable[[], None]:
    def prepare() -> None:
        for each in steps:
            each()

    return prepare


CASES: Final[Mapping[str, Case]] = {
    "pause_queue": Case(
        name="default",
        is_done=lambda: Hold.objects.filter(kind="queue", name="default", reason=REASON),
        refusing=lambda: holds.pause_queue("default"),
    ),
    "resume_queue": Case(
        name="default",
        is_done=lambda: not Hold.objects.exists(),
        ready=lambda: holds.pause_queue("default"),
        refusing=lambda: None,
    ),
    "hold_starts": Case(
        name=add.name,
        is_done=lambda: Hold.objects.filter(kind="workflow", name=add.name, reason=REASON),
        refusing=lambda: holds.hold_starts(add),
    ),
    "release_starts": Case(
        name=add.name,
        is_done=lambda: not Hold.objects.exists(),
        ready=lambda: holds.hold_starts(add),
        refusing=lambda: None,
    ),
    "restored": Case(
        name="main",
        body={"how": "go_on"},
        words=("--go-on", "--yes"),
        is_done=lambda: DatabaseMark.objects.filter(generation=2, decided_at__isnull=False),
        ready=a_restored_database,
        refusing=a_database,
    ),
    "set_limit": Case(
        name="carrier",
        body={"at_once": 2},
        words=("2",),
        is_done=lambda: Limit.objects.filter(override=2),
        ready=a_limit,
    ),
    "take_back_limit": Case(
        name="carrier",
        is_done=lambda: Limit.objects.filter(override=None),
        ready=after(a_limit, lambda: limits.set_limit("carrier", 2)),
    ),
    "set_rate": Case(
        name="calls",
        body={"rate": "7/min", "burst": 5},
        words=("7/min", "--burst", "5"),
        is_done=lambda: (RateLimit.objects.get().now.text, RateLimit.objects.get().now.burst) == ("7/min", 5),
        ready=a_rate,
    ),
    "take_back_rate": Case(
        name="calls",
        is_done=lambda: RateLimit.objects.get().now.text == "1/s",
        ready=after(a_rate, lambda: rates.set_rate("calls", "2/s")),
    ),
    "close_limit": Case(
        name="calls",
        body={"until": FAR.isoformat(), "key": "acme"},
        form={"duration": "1 day", "key": "acme"},
        words=("1 day", "--key", "acme"),
        is_done=lambda: RateKey.objects.filter(key="acme", closed_until__gt=timezone.now()),
        ready=a_rate,
    ),
    "open_limit": Case(
        name="calls",
        body={"key": "acme"},
        words=("--key", "acme"),
        is_done=lambda: RateKey.objects.filter(key="acme", closed_until=None),
        ready=after(a_rate, lambda: rates.close_limit("calls", FAR, key="acme")),
    ),
    "pause_schedule": Case(
        name="nightly",
        is_done=lambda: Schedule.objects.filter(paused=True, pause_reason=REASON),
        ready=a_schedule,
        refusing=after(a_schedule, lambda: schedules.pause("nightly")),
    ),
    "resume_schedule": Case(
        name="nightly",
        is_done=lambda: Schedule.objects.filter(paused=False),
        ready=after(a_schedule, lambda: schedules.pause("nightly")),
        refusing=a_schedule,
    ),
    "run_schedule": Case(
        name="nightly",
        body={"force": True},
        words=("--force",),
        is_done=lambda: Run.objects.count() == 2,
        ready=after(a_schedule, lambda: schedules.run_now("nightly")),
    ),
    "backfill_schedule": Case(
        name="nightly",
        body={"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"},
        form={"since": "2026-01-01 00:00", "until": "2026-01-02 00:00", "planned": "2"},
        words=("2026-01-01", "2026-01-02", "--yes"),
        is_done=lambda: Run.objects.count() == 2,
        ready=a_schedule,
    ),
    "edit_schedule": Case(
        name="nightly",
        body={"rule": "every 6 hours"},
        form={"rule": "every 6 hours", "zone": "UTC", "overlap": "skip", "catch_up": "last"},
        words=("--rule", "every 6 hours"),
        is_done=lambda: Schedule.objects.filter(rule="every 6 hours"),
        ready=a_schedule,
        refusing=lambda: a_schedule("code"),
    ),
    "override_schedule": Case(
        name="nightly",
        body={"rule": "every 6 hours", "zone": "Asia/Tokyo"},
        words=("every 6 hours", "--zone", "Asia/Tokyo"),
        is_done=lambda: Schedule.objects.filter(override_rule="every 6 hours", override_zone="Asia/Tokyo"),
        ready=lambda: a_schedule("code"),
        refusing=a_schedule,
    ),
    "take_back_override": Case(
        name="nightly",
        is_done=lambda: Schedule.objects.filter(override_rule=""),
        ready=after(lambda: a_schedule("code"), lambda: schedules.override("nightly", "every 6 hours")),
        refusing=lambda: a_schedule("code"),
    ),
    "delete_schedule": Case(
        name="nightly",
        words=("--yes",),
        is_done=lambda: not Schedule.objects.exists(),
        ready=a_schedule,
        refusing=lambda: a_schedule("code"),
    ),
    "recover": Case(name="a", is_done=in_state("pending"), ready=a_failure, refusing=a_sleeper),
    "settle": Case(
        name="a",
        body={"location": "charge", "not_done": True},
        form={"said": "not_done"},
        words=("charge", "--not-done"),
        is_done=lambda: EntryMetadata.objects.filter(entry__location="charge", status="failed"),
        ready=a_held_step,
        refusing=after(a_held_step, lambda: get_run("a").settle("charge", not_done=True)),
    ),
    "cancel": Case(
        name="a",
        body={"rollback": True, "interrupt": True},
        words=("--rollback", "--interrupt"),
        is_done=lambda: (
            Run.objects.filter(pending_request="cancel_rollback")
            and Activity.objects.filter(abandon_asked_at__isnull=False)
        ),
        ready=a_hung_step,
        refusing=a_failure,
    ),
    "abandon": Case(
        name="a",
        body={"location": "step"},
        words=("--location", "step"),
        is_done=lambda: Activity.objects.get(abandon_asked_at__isnull=False).location == "step",
        ready=a_hung_step,
        refusing=a_sleeper,
    ),
    "take_stack": Case(name="a", body={"location": "step"}, ready=a_hung_step, refusing=a_sleeper),
    "wake": Case(
        name="a",
        body={"end_sleeps": True},
        words=("--end-sleeps",),
        is_done=lambda: pass_once(get_run("a")).state == "completed",
        ready=a_sleeper,
        refusing=a_failure,
    ),
    "move": Case(
        name="a",
        body={"queue": "high"},
        words=("--queue", "high"),
        is_done=lambda: Run.objects.filter(queue="high"),
        ready=a_sleeper,
        refusing=after(a_sleeper, lambda: get_run("a").move("high")),
    ),
    "pause": Case(name="a", is_done=in_state("paused"), ready=a_sleeper, refusing=a_failure),
    "resume": Case(
        name="a",
        is_done=lambda: Run.objects.exclude(state="paused"),
        ready=after(a_sleeper, lambda: get_run("a").pause()),
        refusing=a_failure,
    ),
    "restart": Case(name="a", is_done=lambda: Run.objects.count() == 2, ready=a_sleeper),
    "replay": Case(name="a", body={"location": "break"}, is_done=lambda: Run.objects.count() == 2, ready=a_failure),
    "go_on": Case(name="a", ready=a_sleeper, refusing=a_sleeper),
    "stop_here": Case(name="a", ready=a_sleeper, refusing=a_sleeper),
}


@dataclass(frozen=True)
class Answer:
    """What a surface says: `done`, `denied`, `missing` or `refused`, and the text."""

    outcome: str
    text: str


def page_of(verb: Verb, name: str) -> str:
    return reverse(
        f"admin:durable_run_{PAGES[verb.on]}", args=[as_key(name), verb.action if verb.on is RUN else verb.word]
    )


def by_admin(user: User, verb: Verb, name: str, shell: Shell, expected: str = "") -> Answer:
    client, case = Client(), CASES[verb.action]
    client.force_login(user)
    form = {"token": "0190e5f0-0000-7000-8000-000000000000", "reason": REASON, "expected": expected}
    at = f"?key={case.body.get('key', '')}&at={case.body.get('location', '')}"
    answer = client.post(page_of(verb, name) + at, {**form, **(case.body if case.form is None else case.form)})
    outcomes = {302: "done", 403: "denied", 404: "missing", 409: "refused", 422: "refused"}
    return Answer(outcomes[answer.status_code], unescape(answer.content.decode()))


def by_rest(user: User, verb: Verb, name: str, shell: Shell, **more: str) -> Answer:
    body = {**CASES[verb.action].body, "reason": REASON, **more}
    answer = Api(user).post(f"/{verb.on.path}/{name}/{verb.word}", body)
    outcomes = {200: "done", 201: "done", 403: "denied", 404: "missing", 409: "refused"}
    return Answer(outcomes[answer.status_code], answer.json().get("detail", ""))


def by_shell(user: User, verb: Verb, name: str, shell: Shell, *more: str) -> Answer:
    who = ("--reason", REASON, "--as", user.username)
    done = shell(verb.command, name, *CASES[verb.action].words, *who, *more)
    return Answer({0: "done", 1: "refused"}[done.status], (done.out + done.err).strip())


#: Where REST shows what a verb is about, with its revision.
SEEN: Final = {
    QUEUE: "/queues",
    WORKFLOW: "/workflows/{name}/stats",
    LIMIT: "/limits/{name}",
    RATE: "/rates/{name}",
    SCHEDULE: "/schedules/{name}",
    DATABASE: "/database",
    RUN: "/runs/{name}",
}
SURFACES: Final[Mapping[str, Callable[..., Answer]]] = {"admin": by_admin, "api": by_rest, "cli": by_shell}
ALL: Final = (*VERBS, *RUN_VERBS.values())
WITHOUT: Final = {("cli", "take_stack")}  # `durable stack` waits for the answer


def given(*surfaces: str, that: Callable[[str, Verb], object] = lambda *_: True) -> pytest.MarkDecorator:
    """Try a test with each verb on these surfaces."""
    found = [(surface, each) for each in ALL for surface in surfaces if (surface, each.action) not in WITHOUT]
    return pytest.mark.parametrize(
        ("surface", "verb"),
        [(surface, each) for surface, each in found if that(surface, each)],
        ids=lambda each: each if isinstance(each, str) else each.action,
    )


def can_be_done(_surface: str, verb: Verb) -> bool:
    return CASES[verb.action].is_done is not None


each_verb = pytest.mark.parametrize("verb", ALL, ids=lambda each: each.action)
each_that_is_done = pytest.mark.parametrize(
    "verb", [each for each in ALL if can_be_done("", each)], ids=lambda each: each.action
)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


def a_user(*, without: str = "", name: str = "ada") -> User:
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="durable").exclude(codename=without))
    return user


def logged() -> list[tuple[str, str, str, str]]:
    """The rows of the log that the surface has written."""
    found = OperatorAction.objects.exclude(source="code").order_by("id")
    return [(each.source, each.actor_label.split(" (")[0], each.action, each.outcome) for each in found]


def test_each_verb_has_a_case() -> None:
    assert sorted(CASES) == sorted(each.action for each in ALL)


@given(*SURFACES, that=can_be_done)
def test_it_is_done_and_logged_with_the_reason(surface: str, verb: Verb, shell: Shell) -> None:
    case = CASES[verb.action]
    case.ready()
    answer = SURFACES[surface](a_user(), verb, case.name, shell)
    assert answer.outcome == "done"
    assert surface != "cli" or answer.text
    assert case.is_done is not None
    assert case.is_done()
    assert logged() == [(surface, "ada", verb.action, "done")]
    row = OperatorAction.objects.latest("id")
    assert row.reason == REASON
    kind, name = ("limit" if verb.on is RATE else verb.on.name), case.name
    assert (row.subject_kind, row.subject) == (("", "") if verb.on is RUN else (kind, name))


@given(*SURFACES)
def test_each_permission_is_needed_and_a_denial_is_logged(surface: str, verb: Verb, shell: Shell) -> None:
    case = CASES[verb.action]
    case.ready()
    for permission in needed_by(verb.action):
        User.objects.all().delete()
        answer = SURFACES[surface](a_user(without=permission), verb, case.name, shell)
        assert answer.outcome == ("refused" if surface == "cli" else "denied")
        assert f"durable.{permission}" in answer.text
    assert {row[2:] for row in logged()} == {(verb.action, "denied")}


@each_verb
def test_who_may_not_is_told_nothing_of_the_body(verb: Verb, shell: Shell) -> None:
    CASES[verb.action].ready()
    user = a_user(without=needed_by(verb.action)[0])
    assert by_rest(user, verb, CASES[verb.action].name, shell, nonsense="1").outcome == "denied"


@each_that_is_done
def test_a_repeated_request_is_done_once(verb: Verb) -> None:
    case, api = CASES[verb.action], Api(a_user())
    case.ready()
    first, again = (api.post(f"/{verb.on.path}/{case.name}/{verb.word}", case.body, key="one") for _ in range(2))
    assert first.status_code in (200, 201)
    assert (again.content, again["Idempotency-Replayed"]) == (first.content, "true")
    assert [row[3] for row in logged()] == ["done"]


@each_verb
def test_a_page_is_for_those_who_may(verb: Verb, shell: Shell) -> None:
    """Who may use the verb and not see runs is told nothing; the page itself needs what the verb needs."""
    case = CASES[verb.action]
    case.ready()
    assert "durable.view_run" in by_admin(a_user(without="view_run"), verb, case.name, shell).text
    assert [row[2:] for row in logged()] == [(verb.action, "denied")]
    for permission in needed_by(verb.action):
        User.objects.all().delete()
        client = Client()
        client.force_login(a_user(without=permission))
        answer = client.get(page_of(verb, case.name))
        assert (answer.status_code, f"durable.{permission}" in answer.content.decode()) == (403, True)


@given(*SURFACES)
def test_a_name_that_nobody_knows_is_refused(surface: str, verb: Verb, shell: Shell) -> None:
    answer = SURFACES[surface](a_user(), verb, "nobody", shell)
    assert answer.outcome in {"admin": ("missing", "refused"), "api": ("missing",), "cli": ("refused",)}[surface]
    assert "nobody" in answer.text
    assert "done" not in {row[3] for row in logged()}


@given(*SURFACES, that=lambda _, verb: CASES[verb.action].refusing)
def test_a_refusal_is_told_and_logged(surface: str, verb: Verb, shell: Shell) -> None:
    case = CASES[verb.action]
    assert case.refusing is not None
    case.refusing()
    with pytest.raises(REFUSALS) as raised:
        verb.call(case.name, **case.body)
    answer = SURFACES[surface](a_user(), verb, case.name, shell)
    assert answer.outcome == "refused"
    why = told(raised.value) if surface == "admin" else str(raised.value)
    assert why[1:] in answer.text
    assert [row[3] for row in logged()] == ["refused"]


@given(*SURFACES, that=can_be_done)
def test_what_has_changed_since_the_page_is_left_alone(surface: str, verb: Verb, shell: Shell) -> None:
    case, seen = CASES[verb.action], "what the operator saw"
    case.ready()
    if surface == "admin":
        answer = by_admin(a_user(), verb, case.name, shell, expected=seen)
    elif surface == "api":
        answer = by_rest(a_user(), verb, case.name, shell, revision=seen)
    else:
        answer = by_shell(a_user(), verb, case.name, shell, "--revision", seen)
    assert (answer.outcome, "changed since" in answer.text) == ("refused", True), answer
    assert "done" not in {row[3] for row in logged()}


@each_that_is_done
def test_what_is_as_it_was_seen_is_changed(verb: Verb, shell: Shell) -> None:
    case, api = CASES[verb.action], Api(a_user())
    case.ready()
    seen = api.get(SEEN[verb.on].format(name=case.name)).json()
    if verb.on is QUEUE:
        [seen] = [each for each in seen["results"] if each["name"] == case.name]
    if verb.action in ("close_limit", "open_limit"):
        seen = next((each for each in seen["keys"] if each["key"] == case.body["key"]), {"revision": "open"})
    assert by_rest(a_user(name="bob"), verb, case.name, shell, revision=seen["revision"]).outcome == "done"
