"""Runs in another database than what they are about: only keys are kept, and each has its own transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from durable import Context, triggers, workflow
from durable.models import Run
from durable.shortcuts import runs_of
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.support.databases import migrated

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

ALIAS = "subjects_elsewhere"


@workflow(name="tests.subjects_elsewhere.waits")
def waits(ctx: Context) -> None:
    ctx.queue.next("answer")


@workflow(name="tests.subjects_elsewhere.greets")
def greets(ctx: Context, pk: int) -> int:
    return pk


@pytest.fixture
def elsewhere(
    transactional_db: None, django_db_blocker: DjangoDbBlocker, postgres_server: EmbeddedPostgres
) -> Iterator[None]:
    config = database_from(postgres_server.create_database(ALIAS))
    with (
        django_db_blocker.unblock(),
        migrated(ALIAS, config),
        override_settings(DURABLE={"DATABASE": ALIAS, "REDIS": False}),
    ):
        yield


def test_runs_in_another_database_are_found_started_and_cancelled(elsewhere: None) -> None:
    triggers.on_delete(Group)
    group = Group.objects.create(name="a")
    run = waits.using(about=group, when_deleted="cancel").start()
    runs = Run.objects.using(ALIAS)
    assert [each.id for each in runs.about(group)] == [run.id]
    assert [each.id for each in runs.about(Group.objects.all())] == [run.id]
    assert [each.id for each in runs_of([group])[group.pk]] == [run.id]
    with transaction.atomic():
        group.delete()
        assert run.state == "pending"  # the deletion may be rolled back
    assert run.state == "cancelled"
    with transaction.atomic():
        Group.objects.create(name="b")
        transaction.set_rollback(True)
    triggers.on_save(Group, greets, when=lambda group, _created: group.name == "c")
    with transaction.atomic():
        other = Group.objects.create(name="c")
        assert not runs.about(other).exists()
    assert [each.workflow for each in runs.about(other)] == [greets.name]
