"""durable's REST beside a project's own: neither the project's document nor its middleware concern the other."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import StreamingHttpResponse
from django.test import Client
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator

from tests.api.conftest import ALL, Api, MakeApi, make_api
from tests.foreign import urls

pytestmark = pytest.mark.slow

__all__ = ["make_api"]


def schema(*, beside: bool) -> dict[str, Any]:
    patterns = urls.urlpatterns if beside else urls.own
    generator: Any = SchemaGenerator
    found: dict[str, Any] = generator(patterns=patterns).get_schema(public=True)
    return found


def test_the_project_s_components_stay_as_they_are() -> None:
    alone, both = schema(beside=False), schema(beside=True)
    components = both["components"]["schemas"]
    assert components["Run"] == alone["components"]["schemas"]["Run"]
    assert both["paths"]["/race/"] == alone["paths"]["/race/"]
    ours = {name for name in components if name not in alone["components"]["schemas"]}
    assert "DurableRun" in ours
    assert {name for name in ours if not name.startswith("Durable") and not name.endswith("Enum")} == set()


def test_both_together_give_no_warning_of_a_component(capsys: pytest.CaptureFixture[str]) -> None:
    GENERATOR_STATS.reset()
    schema(beside=True)
    assert "identical names" not in capsys.readouterr().err


TOKEN = "a token that only the scraper has"


@pytest.mark.django_db
class TestLoginRequired:
    """What has an authentication of its own is not redirected to the page for people."""

    @pytest.fixture(autouse=True)
    def required(self, settings: Any) -> None:
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
        settings.DURABLE = {**settings.DURABLE, "METRICS_TOKEN": TOKEN}

    def test_metrics_with_the_token(self, client: Client) -> None:
        assert client.get("/metrics/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/metrics/").status_code == 401

    @pytest.mark.parametrize("path", ["/runs", "/schema", "/docs", "/workflows", "/runs/none/events"])
    def test_rest_says_who_may(self, make_api: MakeApi, path: str) -> None:
        assert Api(None).get(path).status_code in (401, 403)
        answer = make_api(*ALL).get(path)
        assert answer.status_code in (200, 404)
        assert not isinstance(answer, StreamingHttpResponse)

    def test_the_admin_still_asks_for_a_login(self, client: Client) -> None:
        assert client.get("/admin/durable/run/").status_code == 302
