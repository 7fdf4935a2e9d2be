"""The carriers of `durable.contrib.carry`: what each saves, and what steps find."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django.utils import timezone, translation
from django.utils.formats import date_format

from durable import AsyncContext, Context, runtime, workflow
from durable.checks.configuration import check_carriers
from durable.contrib.carry import schema
from durable.errors import CarrierError
from durable.testing import Harness

CARRY = {"language": "durable.contrib.carry.language", "zone": "durable.contrib.carry.time_zone"}
MOMENT = datetime(2026, 3, 2, 23, 30, tzinfo=UTC)


@contextmanager
def carrying(carry: dict[str, str]) -> Iterator[None]:
    with override_settings(DURABLE={**settings.DURABLE, "CARRY": carry}):
        yield


@pytest.fixture
def h() -> Iterator[Harness]:
    with carrying(CARRY), Harness() as harness:
        yield harness


def told() -> list[str | None]:
    return [translation.get_language(), date_format(timezone.localtime(MOMENT), "l, H:i")]


@workflow(name="tests.contrib.letters")
def letters(ctx: Context) -> Any:
    return [ctx.step("tell", told), translation.get_language()]


async def atold() -> list[str | None]:
    await asyncio.sleep(0)
    return told()


@workflow(name="tests.contrib.aletters")
async def aletters(ctx: AsyncContext) -> Any:
    return [await ctx.step("tell", atold), await ctx.step("plain", told), translation.get_language()]


@workflow(name="tests.contrib.leaves")
def leaves(ctx: Context) -> Any:
    ctx.step("leave", lambda: translation.activate("fr"))
    return ctx.step("tell", told)


def test_the_language_and_the_time_zone_of_a_request_are_those_of_its_run(h: Harness) -> None:
    with translation.override("de"), timezone.override(ZoneInfo("Asia/Tokyo")):
        run, arun = h.start(letters), h.start(aletters)
    before = told()
    h.finish(run)
    h.finish(arun)
    german = ["de", "Dienstag, 08:30"]
    assert run.output == [german, "de"]
    assert arun.output == [german, german, "de"]
    assert told() == before


def test_a_step_leaves_nothing_to_the_next_one_or_to_the_worker(h: Harness) -> None:
    with translation.override("de"):
        run = h.start(leaves)
    before = translation.get_language()
    h.finish(run)
    assert (run.output or [""])[0] == "de"
    assert translation.get_language() == before


def test_no_zone_is_carried_where_none_is_active(h: Harness) -> None:
    with translation.override(None):
        run = h.start(letters)
    row = runtime.current().store.get(run.id)
    assert row is not None
    assert json.loads(row.carried or "") == {"language": ""}
    h.finish(run)
    assert (run.output or ["", ""])[1] is None


def test_a_zone_without_a_name_is_refused(h: Harness) -> None:
    with timezone.override(timezone.get_fixed_timezone(90)), pytest.raises(CarrierError, match="has no name"):
        letters.start()


# -- the schema of django-tenants, on a connection that has what its backend adds


class _Tenant:
    def __init__(self, schema_name: str) -> None:
        self.schema_name = schema_name


class _Connection:
    """The part of `django_tenants.postgresql_backend.base.DatabaseWrapper` that a carrier uses."""

    def __init__(self) -> None:
        self.tenant = _Tenant("public")

    @property
    def schema_name(self) -> str:
        return self.tenant.schema_name

    def set_schema(self, name: str) -> None:
        self.tenant = _Tenant(name)

    def set_tenant(self, tenant: _Tenant) -> None:
        self.tenant = tenant


def test_without_django_tenants_the_schema_is_refused_with_the_engine(h: Harness) -> None:
    with carrying({"schema": "durable.contrib.carry.schema"}):
        assert check_carriers() == []
        with pytest.raises(CarrierError, match=r"django_tenants\.postgresql_backend") as refused:
            letters.start()
        assert isinstance(refused.value.__cause__, ImproperlyConfigured)


def test_the_schema_is_restored_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = _Connection()
    monkeypatch.setattr(type(schema), "_connection", lambda _self: connection)
    connection.set_schema("acme")
    assert schema.save() == "acme"
    mine = connection.tenant
    with schema.restored("globex"):
        assert connection.schema_name == "globex"
    assert connection.tenant is mine
