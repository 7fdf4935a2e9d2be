"""Statements of async workflow code, which go over connections of other threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import override_settings

from durable import AsyncContext, workflow
from durable.core import registry
from durable.models import Run
from durable.replay_check.checking import check_stored
from durable.replay_check.findings import Finding, FindingKind
from durable.runtime import production
from tests.support.stores import passed

pytestmark = pytest.mark.django_db(transaction=True)


@workflow(name="gate.threads")
async def waits(ctx: AsyncContext) -> None:
    await ctx.sleep("wait", "1 day")


@pytest.fixture(autouse=True)
def _waiting() -> Iterator[None]:
    waits.using(id="run").start()
    passed(production(), "run")
    registry.registry.unregister(waits)
    yield
    registry.registry.unregister(waits)
    registry.registry.register(waits)


def finding_of(function: Callable[..., Any]) -> Finding | None:
    """What the check finds once this is the code of the workflow."""
    changed = workflow(name="gate.threads")(function)
    try:
        (found,) = check_stored(["run"])
    finally:
        registry.registry.unregister(changed)
    assert found is not None
    assert found.unchecked == ""
    return found.finding


def test_reads_are_let_through() -> None:
    Group.objects.create(name="staff")

    async def reads(ctx: AsyncContext) -> None:
        if await Group.objects.filter(name="staff").aexists():  # durable: allow[W109] the code under test
            await ctx.sleep("wait", "1 day")

    assert finding_of(reads) is None


@pytest.mark.parametrize("guard", ["raise", "off"])
def test_writes_are_refused(guard: str) -> None:
    async def writes(ctx: AsyncContext) -> None:
        await Group.objects.acreate(name="by the check")  # durable: allow[W109] the code under test
        await ctx.sleep("wait", "1 day")

    with override_settings(DURABLE={"GUARD": guard}):
        found = finding_of(writes)
    assert found is not None
    assert found.kind == FindingKind.EFFECT
    assert not Group.objects.filter(name="by the check").exists()
    assert Run.objects.get(pk="run").state == "sleeping"
