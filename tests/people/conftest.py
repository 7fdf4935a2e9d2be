"""What the tests of questions share: a harness on each store, and a few people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import override_settings

from durable.testing import Harness

NOW = datetime(2026, 1, 1, tzinfo=UTC)


#: The permission that most questions of these tests ask for.
CHANGE = "auth.change_group"


def begun(h: Harness, workflow: Any, *args: Any, **options: Any) -> Any:
    """A run of the workflow that has come to its question, or to its end."""
    run = h.start(workflow, *args, **options)
    h.settle()
    return run


class People:
    """Users by name, made when they are first asked for."""

    def __init__(self) -> None:
        self.managers = Group.objects.create(name="managers")
        # any permission of the project serves as the one that answers need
        self.permission = Permission.objects.get(codename="change_group", content_type__app_label="auth")

    def __getattr__(self, name: str) -> User:
        if name.startswith("_"):
            raise AttributeError(name)
        return User.objects.filter(username=name).first() or User.objects.create_user(name, f"{name}@shop.example", "x")

    def allowed(self, name: str) -> User:
        user: User = getattr(self, name)
        user.user_permissions.add(self.permission)
        return User.objects.get(pk=user.pk)

    def manager(self, name: str) -> User:
        user: User = getattr(self, name)
        user.groups.add(self.managers)
        return user


@pytest.fixture
def people(db: None) -> People:
    return People()


@pytest.fixture
def anna(people: People) -> User:
    """A user who may answer the questions that need `CHANGE`."""
    return people.allowed("anna")


@pytest.fixture(params=["memory", "database"])
def h(request: pytest.FixtureRequest, db: None) -> Iterator[Harness]:
    store: Any = request.param
    with override_settings(DURABLE={"BASE_URL": "https://shop.example"}), Harness(now=NOW, store=store) as harness:
        yield harness


@pytest.fixture
def lenient(db: None) -> Iterator[Harness]:
    """A harness for code that differs from pass to pass on purpose."""
    with Harness(now=NOW, strict=False) as harness:
        yield harness
