"""The committed OpenAPI document is the one that the views make, and describes each of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.test import override_settings
from drf_spectacular.validation import validate_schema

from durable.api import schema
from durable.api.problems import TITLES
from durable.api.urls import urlpatterns

COMMITTED = settings.BASE_DIR / "docs" / "openapi.yaml"


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMMITTED.read_text())
    return found


def test_the_committed_document_is_current() -> None:
    remedy = "write it again: DJANGO_SETTINGS_MODULE=project.settings python -m durable.api.schema > docs/openapi.yaml"
    assert COMMITTED.read_text() == schema.text(), remedy


@override_settings(
    SPECTACULAR_SETTINGS={"TITLE": "The host's", "SCHEMA_PATH_PREFIX": "/x", "CAMELIZE_NAMES": True},
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "DEFAULT_SCHEMA_CLASS": "rest_framework.schemas.AutoSchema"},
)
def test_the_document_does_not_depend_on_the_host() -> None:
    assert schema.text() == COMMITTED.read_text()


def test_the_document_is_openapi(committed: dict[str, Any]) -> None:
    validate_schema(committed)  # type: ignore[no-untyped-call]  # drf-spectacular's own


def test_each_reference_leads_somewhere(committed: dict[str, Any]) -> None:
    found = set(re.findall(r"\$ref: '?(#/[^'\s]+)", COMMITTED.read_text()))
    assert found
    for each in found:
        place: Any = committed
        for name in each.removeprefix("#/").split("/"):
            assert name in place, each
            place = place[name]


def test_each_address_is_described(committed: dict[str, Any]) -> None:
    addresses = {str(each.pattern) for each in urlpatterns if each.name not in {"anywhere", "root", "docs", "schema"}}
    described = {
        path[1:].replace("{run_id}", "<str:run_id>").replace("{message_id}", "<str:message_id>")
        .replace("{location}", "<path:location>").replace("{name}", "<path:name>")
            .replace("{bulk_id}", "<str:bulk_id>").replace("{cause}", "<str:cause>")
        for path in committed["paths"]
    }  # fmt: skip
    assert described == addresses


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_each_operation_says_what_it_does_and_how_it_fails(committed: dict[str, Any]) -> None:
    found = operations(committed)
    assert len(found) > 25
    assert len({operation["operationId"] for _, _, operation in found}) == len(found)
    for method, path, operation in found:
        assert operation["description"], path
        responses = operation["responses"]
        assert {"400", "401", "403", "404", "429"} <= set(responses), path
        assert all("application/problem+json" in responses[each]["content"] for each in responses if each >= "400"), (
            path
        )
        names = [each["name"] for each in operation.get("parameters", [])]
        assert ("Idempotency-Key" in names) == (method == "post"), path


def test_every_problem_is_described_in_the_guide() -> None:
    guide = (settings.BASE_DIR / "docs" / "rest.md").read_text()
    assert [code for code in TITLES if f"`{code}`" not in guide] == []
