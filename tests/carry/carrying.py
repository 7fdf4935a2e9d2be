"""Carriers of the tests, and what they have seen. Each is named by its path in `DURABLE["CARRY"]`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.test import override_settings

#: What a request has made active.
tenant: ContextVar[str | None] = ContextVar("tests_carry_tenant", default=None)

here = threading.local()


@contextmanager
def carrying_with(carry: Any, **more: Any) -> Iterator[None]:
    """Let the setting CARRY be this one."""
    with override_settings(DURABLE={**settings.DURABLE, "CARRY": carry, **more}):
        yield


class Tenant:
    """Carries a context variable."""

    def save(self) -> Any:
        return tenant.get()

    @contextmanager
    def restored(self, value: str) -> Iterator[None]:
        token = tenant.set(value)
        try:
            yield
        finally:
            tenant.reset(token)


class ThreadTenant:
    """Carries what belongs to a thread, as a connection's schema does. `entered` counts the blocks that are open."""

    entered = 0
    lock = threading.Lock()

    def save(self) -> Any:
        return getattr(here, "tenant", None)

    @contextmanager
    def restored(self, value: str) -> Iterator[None]:
        before = getattr(here, "tenant", None)
        here.tenant = value
        with self.lock:
            ThreadTenant.entered += 1
        try:
            yield
        finally:
            here.tenant = before
            with self.lock:
                ThreadTenant.entered -= 1


#: What belongs to the process: a variable of a module, and one in a dict.
process_tenant: str | None = None
of_process: dict[str, str | None] = {"tenant": None}


class ProcessTenant:
    """Carries what belongs to the process, as a project with one thread for each process keeps it."""

    def save(self) -> Any:
        return of_process["tenant"]

    @contextmanager
    def restored(self, value: str) -> Iterator[None]:
        global process_tenant
        before = process_tenant, of_process["tenant"]
        process_tenant = of_process["tenant"] = value
        try:
            yield
        finally:
            process_tenant, of_process["tenant"] = before


carry = Tenant()
thread_carry = ThreadTenant()


def factory() -> Tenant:
    return Tenant()


def thread_tenant() -> Any:
    return getattr(here, "tenant", None)


class Broken:
    """Does what it is told: `Broken.to_save` and `Broken.to_restore` are called."""

    saves: Any = staticmethod(lambda: "value")
    restores: Any = staticmethod(lambda value: Tenant().restored(value))

    def save(self) -> Any:
        return Broken.saves()

    def restored(self, value: Any) -> Any:
        return Broken.restores(value)


class SavesOnly:
    def save(self) -> Any:
        return None


class NeedsArguments:
    def __init__(self, schema: str) -> None:
        self.schema = schema


class RefusesToRestore:
    def save(self) -> str:
        return "two"

    def restored(self, value: str) -> Any:
        raise LookupError(value)


class Queries:
    """Reads a row wherever it is asked, as a carrier of users does."""

    def save(self) -> Any:
        return User.objects.get(username="ada").pk

    @contextmanager
    def restored(self, value: int) -> Iterator[None]:
        with Tenant().restored(User.objects.get(pk=value).username):
            yield


def of_the_process() -> list[str | None]:
    return [process_tenant, of_process["tenant"]]
