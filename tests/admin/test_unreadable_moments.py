"""A run with a time that Python cannot read is shown among the others, on every surface."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection, models
from django.test import Client, override_settings

from durable.models import EntryMetadata, Failure, QueueMessage, Run, WorkerProcess
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.api.conftest import ALL, MakeApi, make_api  # noqa: F401  # a fixture
from tests.cli.conftest import Shell, shell  # noqa: F401  # a fixture
from tests.support.databases import only_with_a_server
from tests.support.worker_rows import a_worker

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


#: Every time that durable's tables have.
TIMES = [
    (model, field.name)
    for model in apps.get_app_config("durable").get_models()
    for field in model._meta.concrete_fields
    if isinstance(field, models.DateTimeField)
]
ADDRESSES = [
    "/admin/durable/",
    "/admin/durable/run/",
    "/admin/durable/run/odd/change/",
    "/admin/durable/run/odd/change/?part=history",
    "/admin/durable/run/odd/change/?part=timeline",
    "/admin/durable/run/schedules/",
    "/admin/durable/run/running/",
]
PATHS = [
    "/runs",
    "/runs/odd",
    "/runs/odd/entries",
    "/runs/odd/tree",
    "/runs/odd/timeline",
    "/schedules",
    "/workers",
    "/limits",
    "/queues",
]
COMMANDS = [["list"], ["show", "odd"], ["why", "odd"], ["schedules"], ["workers"], ["limits"], ["running"], ["doctor"]]


@pytest.mark.parametrize("time", ["infinity", "-infinity"])
def test_no_time_that_sql_has_written_keeps_a_surface_from_answering(
    stage: Stage,
    operator: Client,
    make_api: MakeApi,  # noqa: F811
    shell: Shell,  # noqa: F811
    time: str,
) -> None:
    only_with_a_server()
    api = make_api(*ALL)
    stage.start(flows.nap, id="odd")
    stage.start(flows.nap, id="held", settle=False)
    stage.claim("held")
    stage.start(flows.broken_branch, id="failed")
    flows.approve.using(id="asked").start().send("approved")
    a_worker("host:4711:abc")
    with connection.cursor() as cursor:
        for model, name in TIMES:
            cursor.execute(f'UPDATE {model._meta.db_table} SET "{name}" = %s WHERE "{name}" IS NOT NULL', [time])
    read = {model for model, _ in TIMES if list(model._default_manager.all())}
    assert read >= {Run, EntryMetadata, Failure, QueueMessage, WorkerProcess}
    found = {each: operator.get(each).status_code for each in ADDRESSES}
    found |= {each: api.get(each).status_code for each in PATHS}
    assert set(found.values()) == {200}, found
    answered = {each[0]: shell(*each).status for each in COMMANDS}
    assert answered == {**dict.fromkeys(answered, 0), "doctor": 1}


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
