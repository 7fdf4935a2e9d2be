"""Users with permissions, and clients that speak JSON for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.test import Client

from durable.models import Run
from tests.api import workflows

ALL = ("view_run", "view_payload", "start_run", "operate_run", "replay_run")

__all__ = ["ALL", "Api", "MakeApi", "workflows"]


class Api:
    """A client for one user, with paths below the interface's prefix."""

    def __init__(self, user: User | None, prefix: str = "/api") -> None:
        self.user = user
        self.prefix = prefix
        self.client = Client()
        self.serve_with(threads=True)
        if user is not None:
            self.client.force_login(user)

    def serve_with(self, *, threads: bool) -> None:
        """Whether the server says that it has several threads in a process; in one that has not, nothing waits."""
        defaults: dict[str, Any] = self.client.defaults
        defaults["wsgi.multithread"] = threads

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(self.prefix + path, headers=headers)

    def post(self, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> Any:
        if key is not None:
            headers["Idempotency-Key"] = key
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self.client.post(self.prefix + path, data=data, content_type="application/json", headers=headers)


MakeApi = Callable[..., Api]


def problem(answer: HttpResponseBase, status: int, code: str) -> dict[str, Any]:
    """The answer's problem document, which has to be this one."""
    response: Any = answer
    assert response["Content-Type"] == "application/problem+json", response.content
    document: dict[str, Any] = json.loads(response.content)
    assert (response.status_code, document["status"], document["code"]) == (status, status, code), document
    assert document["type"] == f"urn:durable:problem:{code}"
    assert document["detail"]
    return document


def own_runs(request: HttpRequest, runs: QuerySet[Run]) -> QuerySet[Run]:
    """A rule for `API_RUNS`: a user's runs begin with the user's name."""
    return runs.filter(id__startswith=f"{request.user}-")


def pages(api: Api, path: str) -> Iterator[dict[str, Any]]:
    """Each page of a list, up to the last one."""
    cursor = ""
    for _ in range(100):
        page = api.get(f"{path}{cursor}").json()
        yield page
        if page["next_cursor"] is None:
            return
        cursor = f"{'&' if '?' in path else '?'}cursor={page['next_cursor']}"
    raise AssertionError("the list has no end")


@pytest.fixture
def make_api(db: None) -> MakeApi:
    """A client for a new user with these permissions of durable's."""

    def make(*permissions: str, name: str = "") -> Api:
        user = User.objects.create_user(name or f"user{User.objects.count()}")
        found = Permission.objects.filter(content_type__app_label="durable", codename__in=permissions)
        assert len(found) == len(permissions)
        user.user_permissions.set(found)
        return Api(user)

    return make


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    """A client of a user with all permissions."""
    return make_api(*ALL)
