"""Durable's tables on a second database.

The admin looks there and nowhere else. Users and sessions stay where they were.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections
from django.test import Client, override_settings
from pytest_django.plugin import DjangoDbBlocker

from durable.models import OperatorAction, Run
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.admin import flows
from tests.admin.conftest import OPERATOR, Stage, staged
from tests.admin.pages import hidden, url
from tests.support.databases import migrated

pytestmark = [pytest.mark.postgres, pytest.mark.django_db]

ALIAS = "admin_elsewhere"


def stray(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    assert "durable_" not in sql, f"a statement strayed to the default database: {sql}"
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
    asked = client.post(url("bulk"), {"verb": "cancel", "id": ["run"]})
    assert asked.status_code == 200
    done = client.post(url("act", "run", "cancel"), hidden(client.get(url("act", "run", "cancel"))))
    assert done.status_code == 302
    assert Run.objects.using(ALIAS).get(pk="run").state == "cancelled"
    [action] = OperatorAction.objects.using(ALIAS).all()
    assert (action.actor_label, action.actor_id) == ("ada", None)  # no such user there; the name is kept
