"""Users that are read from a token and have no row: a stateless JWT, an API gateway's header."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import override_settings
from rest_framework.authentication import BaseAuthentication

from durable.models import OperatorAction
from tests.api.conftest import Api, problem

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class TokenUser:
    """The user of a token, as djangorestframework-simplejwt has it: no model, no `_state`, permissions by claims."""

    pk: str | None
    username: str
    permissions: list[str] = field(default_factory=list)
    is_active = True
    is_authenticated = True
    is_anonymous = False

    def __str__(self) -> str:
        return f"TokenUser {self.pk or self.username}"

    def has_perm(self, permission: str, _of: object = None) -> bool:
        return permission.removeprefix("durable.") in self.permissions


class ByHeader(BaseAuthentication):
    """Reads the token, which is in clear here."""

    def authenticate(self, request: Any) -> tuple[Any, None] | None:
        found: HttpRequest = request._request
        pk, username, permissions = found.headers["Authorization"].split(" ")
        return TokenUser(None if pk == "None" else pk, username, permissions.split(",")), None

    def authenticate_header(self, request: Any) -> str:
        return "Token"


@pytest.fixture(autouse=True)
def tokens() -> Any:
    with override_settings(REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [f"{__name__}.ByHeader"]}):
        yield


@pytest.mark.parametrize("name", ["mara", "-"])
def test_a_token_s_user_starts_and_steers_and_is_named_in_the_log(name: str) -> None:
    token = f"8f14e45f {'' if name == '-' else name} view_run,start_run,operate_run"
    started = Api(None).post("/runs", {"workflow": "tests.api.add", "args": [[1]]}, Authorization=token)
    assert started.status_code == 201, started.content
    run_id = started.json()["id"]
    for verb in ("pause", "resume", "cancel"):
        answer = Api(None).post(f"/runs/{run_id}/{verb}", {}, Authorization=token)
        assert answer.status_code == 200, answer.content
    logged = OperatorAction.objects.filter(run_id=run_id)
    assert {(each.actor_label, each.actor_id) for each in logged} == {
        ("TokenUser 8f14e45f" if name == "-" else name, None)
    }
    assert len(logged) == 4


def test_a_token_s_user_without_the_permission_is_refused() -> None:
    answer = Api(None).post("/runs", {"workflow": "tests.api.add"}, Authorization="8f14e45f mara view_run")
    problem(answer, 403, "permission-denied")


def test_a_bulk_needs_a_user_whose_permissions_can_be_read_again() -> None:
    token = "8f14e45f mara view_run,operate_run,start_run"
    answer = Api(None).post("/bulks", {"verb": "cancel", "filter": {"workflow": "tests.api.add"}}, Authorization=token)
    assert "no row in the table of users" in problem(answer, 403, "permission-denied")["detail"]


def test_a_key_of_a_request_is_of_its_user_alone() -> None:
    body = {"workflow": "tests.api.add", "args": [[1]]}
    first, second = (
        Api(None).post("/runs", body, key="same", Authorization=f"None {name} view_run,start_run").json()["id"]
        for name in ("mara", "noor")
    )
    assert first != second
