"""Pages of the admin as tests read them: addresses, texts, hidden fields, and the traces that verbs leave."""

from __future__ import annotations

import re
from typing import Any

from django.contrib.admin.utils import quote
from django.urls import reverse

from durable.models import OperatorAction


def url(name: str, run_id: str | None = None, *args: str) -> str:
    return reverse(f"admin:durable_run_{name}", args=[*([quote(run_id)] if run_id else []), *args])


def text_of(response: Any, status: int = 200) -> str:
    assert response.status_code == status, (response.status_code, response.content.decode()[:2000])
    return str(response.content.decode())


def hidden(response: Any) -> dict[str, str]:
    """The fields that the page's form sends by itself."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', text_of(response))
    return {name: value for name, value in found if name != "csrfmiddlewaretoken"}


def traces(run_id: str) -> list[tuple[str, str, str, str]]:
    found = OperatorAction.objects.filter(run_id=run_id).order_by("id")
    return [(each.actor_label, each.action, each.outcome, each.reason) for each in found]
