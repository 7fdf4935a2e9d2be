"""A run with a time that Python cannot read is shown among the others, on every surface."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client, override_settings

from durable.models import Run
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.api.conftest import ALL, MakeApi, make_api  # noqa: F401  # a fixture
from tests.cli.conftest import Shell, shell  # noqa: F401  # a fixture

UNREADABLE = (
    ["infinity", "-infinity", "20000-01-01 00:00:00+00"]
    if connection.vendor == "postgresql"
    else ["20000-01-01 00:00:00"]
)
LAST = "9999-12-31 23:59:59.999999"


@pytest.fixture(params=[*UNREADABLE, LAST])
def moment(request: pytest.FixtureRequest, stage: Stage) -> str:
    """A time of each kind that the run "odd" is due at; the run "plain" has a usual one."""
    stage.start(flows.nap, id="plain")
    stage.start(flows.nap, id="odd")
    given: str = request.param
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durable_run SET wake_at = %s WHERE id = 'odd'", [given])
    return given


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_admin_shows_both(operator: Client, moment: str, zone: str) -> None:
    expected = "before the year 1" if moment.startswith("-") else "after the year 9999"
    with override_settings(TIME_ZONE=zone):
        page = operator.get("/admin/durable/run/")
        assert page.status_code == 200
        assert {f"{run_id}" in page.content.decode() for run_id in ("plain", "odd")} == {True}
        page = operator.get("/admin/durable/run/odd/change/")
        assert page.status_code == 200
        assert expected in page.content.decode()


@pytest.mark.usefixtures("moment")
def test_rest_and_the_command_line_list_both(make_api: MakeApi, shell: Shell) -> None:  # noqa: F811
    api = make_api(*ALL)
    assert {run["id"] for run in api.get("/runs").json()["results"]} == {"plain", "odd"}
    assert api.get("/runs/odd").status_code == 200
    assert set(shell("list", "-o", "ids").lines) == {"plain", "odd"}
    assert shell("list").status == 0
    assert shell("show", "odd").status == 0
    assert shell("why", "odd").status == 0
    assert Run.objects.count() == 2
