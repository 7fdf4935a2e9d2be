"""What travels with a run is shown to those who may see payloads, redacted, and kept in files of histories."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client

from durable import Context, workflow
from durable.core.records import RunRecord
from durable.histories import Values, read_histories, written_history
from durable.models import Run
from durable.operations.imports import import_run
from durable.runtime import Runtime
from tests.carry import carrying
from tests.carry.carrying import carrying_with
from tests.support.stores import in_force, settle

pytestmark = pytest.mark.django_db(transaction=True)

CARRY = {"tenant": "tests.carry.carrying.carry"}


def hide(workflow: str, field: str, value: Any) -> Any:
    return {**value, "tenant": "(hidden)"} if field == "carried" else value


@workflow(name="tests.carry.shown")
def shown(ctx: Context) -> Any:
    return ctx.step("tenant", carrying.tenant.get)


@workflow(name="tests.carry.links")
def links(ctx: Context) -> Any:
    paid = ctx.link("paid", verify=f"{__name__}.of_the_tenant")
    URLS.append(paid.url)
    return paid.wait("answer")


URLS: list[str] = []
ASKED: list[str | None] = []


def of_the_tenant(_body: bytes, _headers: Mapping[str, str]) -> bool:
    ASKED.append(carrying.tenant.get())
    return True


@pytest.fixture
def at() -> Iterator[Runtime]:
    with carrying_with(CARRY), in_force() as at:
        yield at


@pytest.fixture
def run(at: Runtime) -> str:
    with carrying.carry.restored("acme & co"):
        return shown.using(id="run").start().id


def staff(*permissions: str) -> Client:
    user = User.objects.create_user("-".join(permissions), is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def page(client: Client) -> str:
    answer = client.get("/admin/durable/run/run/change/")
    assert answer.status_code == 200
    return answer.content.decode()


def shell(*args: str) -> str:
    out = io.StringIO()
    call_command("durable", *args, stdout=out)
    return out.getvalue()


def test_the_page_of_a_run_shows_it_to_those_who_may_see_payloads(run: str) -> None:
    text = page(staff("view_run", "view_payload"))
    assert "Travels with it" in text
    assert "acme &amp; co" in text
    assert "Not read here" not in text
    hidden = page(staff("view_run"))
    assert "Travels with it" not in hidden
    assert "acme" not in hidden


def test_rest_shows_it_to_those_who_may_see_payloads(run: str) -> None:
    data = staff("view_run", "view_payload").get("/api/runs/run").json()
    assert (data["carried"], data["carried_unread"]) == ({"tenant": "acme & co"}, [])
    data = staff("view_run").get("/api/runs/run").json()
    assert (data["carried"], data["carried_unread"]) == (None, [])


def test_the_command_line_and_an_export_show_it(run: str) -> None:
    assert "carries   tenant=acme & co" in shell("show", "run", "--payloads")
    assert "acme" not in shell("show", "run")
    assert json.loads(shell("show", "run", "--payloads", "--output=json"))["carried"] == {"tenant": "acme & co"}
    assert json.loads(shell("export", "run"))["run"]["carried"] == {"tenant": "acme & co"}
    assert "acme" not in shell("export", "run", "--no-payloads")


def test_the_redaction_hook_decides(run: str) -> None:
    with carrying_with(CARRY, REDACT=f"{__name__}.hide"):
        client = staff("view_run", "view_payload")
        assert client.get("/api/runs/run").json()["carried"] == {"tenant": "(hidden)"}
        assert "acme" not in page(client)
        assert "acme" not in shell("show", "run", "--payloads")
        assert "acme" not in shell("export", "run")


def test_a_carrier_that_is_gone_is_named(run: str) -> None:
    with carrying_with({}):
        text = page(staff("view_run"))
        assert "Not read here" in text
        assert "DURABLE[&quot;CARRY&quot;]" in text or 'DURABLE["CARRY"]' in text
        assert "not read here  tenant" in shell("show", "run")
        assert staff("view_run", "view_payload").get("/api/runs/run").json()["carried_unread"] == ["tenant"]


def test_an_import_keeps_it_and_a_redacted_file_lacks_it(run: str, tmp_path: Path) -> None:
    settle()
    [kept] = read_histories(written_history(run, Values.STORED))
    [redacted] = read_histories(written_history(run, Values.REDACTED))
    assert "acme" not in "".join(written_history(run, Values.REDACTED))
    assert redacted.run.carried is None
    Run.objects.all().delete()
    import_run(kept.run, kept.entries, kept.messages, origin="a test", digest="1" * 32)
    assert json.loads(Run.objects.get(pk=run).carried or "") == {"tenant": "acme & co"}


def test_a_file_from_before_is_read(run: str) -> None:
    Run.objects.update(carried=None)
    text = "".join(written_history(run, Values.STORED))
    assert "carried" not in text


@pytest.mark.parametrize("carried", ["acme", "[1]", json.dumps({"tenant": "x" * 9_000})], ids=["text", "list", "large"])
def test_an_import_refuses_what_no_start_has_saved(run: str, carried: str) -> None:
    [history] = read_histories(written_history(run, Values.STORED))
    wanted: RunRecord = history.run
    wanted.id, wanted.carried = "other", carried
    with pytest.raises(ValueError, match="what travels with a run"):
        import_run(wanted, history.entries, history.messages, origin="a test", digest="1" * 32)


def test_the_verify_of_a_link_has_it(at: Runtime, client: Client) -> None:
    URLS.clear()
    ASKED.clear()
    with carrying_with(CARRY, BASE_URL="https://shop.example"), carrying.carry.restored("acme"):
        run = links.start()
    with carrying_with(CARRY, BASE_URL="https://shop.example"):
        settle()
        answer = client.post(
            URLS[0].removeprefix("https://shop.example"), {"paid": True}, "application/json", secure=True
        )
    assert answer.status_code == 200, answer.content
    assert ASKED == ["acme"]
    settle()
    assert run.output == {"paid": True}


def test_a_start_over_rest_whose_carrier_fails_is_no_server_error(at: Runtime) -> None:
    carrying.Broken.saves = staticmethod(lambda: object)
    with carrying_with({"tenant": "tests.carry.carrying.Broken"}):
        answer = staff("view_run", "start_run").post(
            "/api/runs", {"workflow": "tests.carry.shown", "args": []}, "application/json"
        )
    assert answer.status_code in (400, 409, 422), answer.content
    assert 'he carrier "tenant"' in answer.json()["detail"]
