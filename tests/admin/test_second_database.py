"""A project with two databases.

With durable's tables on the second one, the admin looks there and nowhere else. Users and sessions stay where they
were. With a router that reads from a replica, durable's own pages, answers and commands read where it writes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.test import Client, override_settings
from pytest_django.plugin import DjangoDbBlocker

from durable import Context, people, workflow
from durable.errors import NotAllowedError
from durable.models import OperatorAction, Run
from durable.models.rows import Row
from durable.operations import Actor, acting_as
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.admin import flows
from tests.admin.conftest import OPERATOR, Stage, staged
from tests.admin.every_page import addresses, fill
from tests.admin.pages import confirm, printed, url
from tests.support.databases import migrated

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db]

ALIAS = "admin_elsewhere"


def stray(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    assert "durable_" not in sql, f"a statement strayed to another database: {sql}"
    return execute(sql, params, many, context)


class Router:
    """As `durable.W084` asks for it."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return ALIAS if model._meta.app_label == "durable" else None

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool:
        return True


@pytest.fixture
def elsewhere(
    db: None, log_in: Callable[..., Client], django_db_blocker: DjangoDbBlocker, postgres_server: EmbeddedPostgres
) -> Iterator[tuple[Stage, Client]]:
    client = log_in(*OPERATOR)
    config = database_from(postgres_server.create_database(ALIAS))
    with django_db_blocker.unblock(), migrated(ALIAS, config):
        Run.objects.using(ALIAS).all().delete()
        with (
            override_settings(DURABLE={"DATABASE": ALIAS}, DATABASE_ROUTERS=[Router()]),
            connections["default"].execute_wrapper(stray),
            staged() as stage,
        ):
            yield stage, client


def test_each_page_and_a_verb(elsewhere: tuple[Stage, Client], make_user: Any) -> None:
    stage, client = elsewhere
    stage.start(flows.branches, id="branches")
    stage.start(flows.approve, id="run")
    step = f"{url('step', 'branches')}?at=ship/label/buy"
    replay = f"{url('replay', 'branches')}?at=ship/label/buy"
    pages = [url("changelist"), "/admin/durable/", url("change", "run"), url("live", "run"), url("export", "run")]
    for address in [*pages, step, replay, url("send", "run"), "/admin/durable/operatoraction/"]:
        assert client.get(address).status_code == 200, address
    assert client.post(url("bulk"), {"verb": "cancel", "id": ["run"]}).status_code == 200
    assert confirm(client, url("act", "run", "cancel")).status_code == 302
    assert Run.objects.using(ALIAS).get(pk="run").state == "cancelled"
    [action] = OperatorAction.objects.using(ALIAS).all()
    assert (action.actor_label, action.actor_id) == ("ada", None)  # no such user there; the name is kept


class StrictRouter(Router):
    """As Django's documentation writes one: the second database has durable's tables, and the first has all others."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return (db == ALIAS) == (app_label == "durable")


@pytest.fixture
def apart(
    db: None, log_in: Callable[..., Client], django_db_blocker: DjangoDbBlocker, postgres_server: EmbeddedPostgres
) -> Iterator[tuple[Stage, Client]]:
    client = log_in(*OPERATOR)
    config = database_from(postgres_server.create_database("admin_apart"))
    with (
        django_db_blocker.unblock(),
        override_settings(DURABLE={"DATABASE": ALIAS}, DATABASE_ROUTERS=[StrictRouter()]),
        migrated(ALIAS, config, apps=["durable"]),
        connections["default"].execute_wrapper(stray),
        staged() as stage,
    ):
        yield stage, client


def test_the_database_has_no_users(apart: tuple[Stage, Client]) -> None:
    stage, client = apart
    tables = connections[ALIAS].introspection.table_names()
    assert {each.partition("_")[0] for each in tables} == {"durable", "django"}  # and what Django's migrations keep
    stage.start(flows.approve, id="run")
    for address in [url("changelist"), "/admin/durable/", url("change", "run"), "/admin/durable/operatoraction/"]:
        assert client.get(address).status_code == 200, address
    assert confirm(client, url("act", "run", "cancel")).status_code == 302
    [action] = OperatorAction.objects.all()
    assert (action.action, action.actor_label, action.actor_id) == ("cancel", "ada", None)


@workflow(name="tests.second_database.refund")
def refund(ctx: Context) -> str:
    return ctx.ask_person("approve", permission="auth.change_user", not_by="starter").by


def test_who_has_started_a_run_may_not_answer_it(apart: tuple[Stage, Client]) -> None:
    stage, _client = apart
    ada, bob = (User.objects.create_superuser(name) for name in ("ada lovelace", "bob"))
    with acting_as(Actor("admin", user=ada)):
        stage.start(refund, id="refund")
    assert people.questions_for(ada) == []
    [question] = people.questions_for(bob)
    with pytest.raises(NotAllowedError, match="four eyes"):
        question.answer(True, by=ada)
    User.objects.filter(pk=ada.pk).update(username="renamed")
    with pytest.raises(NotAllowedError, match="four eyes"):
        question.answer(True, by=ada)
    question.answer(True, by=bob)
    assert stage.settle("refund").state == "completed"
    action = OperatorAction.objects.get(run_id="refund", action="start")
    assert (action.actor_id, action.actor_key) == (None, f"user:{ada.pk}")


def test_a_user_is_deleted_where_there_is_no_audit_log(apart: tuple[Stage, Client]) -> None:
    ada = User.objects.get(username="ada")
    assert ada.delete()[1]["auth.User"] == 1  # `stray` would have met a look for the user's actions


class StaleReplica:
    """A router of a project whose reads go to a replica. This one has durable's tables and none of the rows."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return ALIAS if model._meta.app_label == "durable" else "default"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool:
        return True


@pytest.fixture
def beside_a_replica(
    stage: Stage,
    client: Client,
    make_user: Callable[..., User],
    django_db_blocker: DjangoDbBlocker,
    postgres_server: EmbeddedPostgres,
) -> Iterator[dict[str, list[str]]]:
    """The addresses of the admin's pages, for a client that may do everything."""
    found = Permission.objects.filter(content_type__app_label="durable")
    user = make_user(*found.values_list("codename", flat=True))
    fill(stage, user)
    client.force_login(user)
    pages = addresses()
    config = database_from(postgres_server.create_database(ALIAS))
    with (
        django_db_blocker.unblock(),
        migrated(ALIAS, config),
        override_settings(DATABASE_ROUTERS=[StaleReplica()]),
        connections[ALIAS].execute_wrapper(stray),
    ):
        yield pages
    flows.SWITCH["broken"] = False


#: Those of `fill` that failed, wait, have branches, children, messages or corrected steps, or are being executed.
SOME_RUNS = ("run-4", "run-6", "run-9", "run-12", "run-19", "run-26")


def test_pages_are_read_where_rows_are_written(beside_a_replica: dict[str, list[str]], client: Client) -> None:
    asked = [each for group in beside_a_replica.values() for each in group]
    asked = [each for each in asked if "run-" not in each or any(f"{run}/" in each for run in SOME_RUNS)]
    asked += [url(name, run) for run in SOME_RUNS for name in ("export", "live")]
    asked += [url("raw", "run-6") + f"?of={of}" for of in ("input", "output")] + [url("names", "workflow")]
    assert {address: code for address in asked if (code := status_of(client, address)) >= 500} == {}
    assert confirm(client, url("act", "run-6", "cancel")).status_code == 302
    assert Run.objects.using("default").get(pk="run-6").state == "cancelled"


def test_answers_and_commands_read_where_rows_are_written(
    beside_a_replica: dict[str, list[str]], client: Client
) -> None:
    lists = ("runs", "counts", "causes", "queues", "workers", "workflows", "limits", "rates", "schedules")
    of_runs = ("", "/entries", "/logs", "/timeline", "/tree", "/running", "/children", "/messages")
    for each in [*lists, "operator-actions", *(f"runs/{run}{part}" for run in SOME_RUNS for part in of_runs)]:
        assert status_of(client, f"/api/{each}") == 200, each
    for run in SOME_RUNS:
        printed("show", run)
        printed("export", run)
    assert printed("export", "--history", *SOME_RUNS).count("durable_history") == len(SOME_RUNS)


def test_every_table_has_the_base_that_reads_left_out_columns_where_the_row_is() -> None:
    assert [each for each in apps.get_app_config("durable").get_models() if not issubclass(each, Row)] == []


def status_of(client: Client, address: str) -> int:
    response = client.get(address)
    b"".join(response)  # an export is read while it is sent
    return response.status_code
