"""Pages of the admin as tests read and post them, what the command line prints beside them, and what verbs leave."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape
from io import StringIO
from typing import Any

from django.contrib.admin.utils import quote
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from durable.models import OperatorAction
from tests.support.one_parser import one_parser


def url(name: str, run_id: object = None, *args: str) -> str:
    return reverse(f"admin:durable_run_{name}", args=[*([] if run_id is None else [quote(str(run_id))]), *args])


def log_url(name: str = "changelist", *args: object) -> str:
    """A page of the audit log."""
    return reverse(f"admin:durable_operatoraction_{name}", args=args)


def text_of(response: Any, status: int = 200) -> str:
    assert response.status_code == status, (response.status_code, response.content.decode()[:2000])
    return str(response.content.decode())


def read(client: Any, address: str, status: int = 200) -> str:
    """The page at an address, with its characters as a reader sees them."""
    return unescape(text_of(client.get(address), status))


def listed(client: Any, query: str = "") -> list[str]:
    """The runs in the list with this query, in its order."""
    return rows_of(client.get(url("changelist") + query))


def rows_of(response: Any) -> list[str]:
    """The runs in a list that was answered, in its order."""
    return [row.run.id for row in response.context["rows"]]


def hidden(response: Any) -> dict[str, str]:
    """The fields that the page's form sends by itself."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', text_of(response))
    return {name: value for name, value in found if name != "csrfmiddlewaretoken"}


def confirm(
    client: Any, address: str, given: Mapping[str, str] | None = None, *, follow: bool = False, **more: str
) -> Any:
    """Post the form of a page: what it sends by itself, and what is given."""
    return client.post(address, {**hidden(client.get(address)), **(given or {}), **more}, follow=follow)


def statements(client: Any, address: str) -> list[str]:
    """The statements of a page, which has to be shown."""
    with CaptureQueriesContext(connection) as queries:
        text_of(client.get(address))
    return [each["sql"] for each in queries.captured_queries]


def printed(*arguments: str) -> str:
    """What a command of durable prints, its errors too."""
    out = StringIO()
    with one_parser():
        call_command("durable", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def traces(run_id: str) -> list[tuple[str, str, str, str]]:
    found = OperatorAction.objects.filter(run_id=run_id).order_by("id")
    return [(each.actor_label, each.action, each.outcome, each.reason) for each in found]
