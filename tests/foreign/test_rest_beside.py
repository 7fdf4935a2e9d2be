"""durable's REST beside a project's own: neither the project's document nor its middleware concern the other."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator

from tests.api.addresses import READS, WRITES
from tests.api.conftest import ALL, MakeApi, make_api
from tests.foreign import urls
from tests.support.addresses import path_of

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
    own = alone["components"]["schemas"]
    assert {"Run", "StateEnum", "EventEnum"} <= own.keys()  # called as ours would be
    assert {name: components.get(name) for name in own} == own
    assert both["paths"]["/race/"] == alone["paths"]["/race/"]
    ours = components.keys() - own.keys()
    assert "DurableRun" in ours
    assert {name for name in ours if not name.startswith("Durable")} == set()


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

    @pytest.mark.parametrize("method", ["get", "head", "options", "post", "put", "patch", "delete"])
    def test_each_address_of_rest_says_itself_who_may(self, client: Client, method: str) -> None:
        for name, address in {**WRITES, **READS}.items():
            answer = client.generic(method.upper(), path_of(f"durable_api:{name}", address, {}))
            assert answer.status_code == 401, (name, answer.status_code)

    def test_who_may_gets_an_answer(self, make_api: MakeApi) -> None:
        api = make_api(*ALL)
        for path in ("/runs", "/schema", "/docs", "/workflows"):
            assert api.get(path).status_code == 200, path
        assert api.get("/runs/none/events").status_code == 404

    def test_the_admin_still_asks_for_a_login(self, client: Client) -> None:
        assert client.get("/admin/durable/run/").status_code == 302
