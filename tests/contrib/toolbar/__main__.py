"""Asks pages of a project with the toolbar, and prints its panel of each: a JSON object by address."""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import Any

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.contrib.toolbar.settings"
django.setup()

from debug_toolbar.store import get_store  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import transaction  # noqa: E402
from django.test import AsyncClient, Client  # noqa: E402


def panel_of(content: str) -> dict[str, Any]:
    """The panel of a page: what was recorded, its line in the side bar, and its HTML."""
    request_id = re.search(r'data-request-id="([0-9a-f-]+)"', content)[1]  # type: ignore[index]
    stats = get_store().panel(request_id, "DurablePanel")
    shown = Client().get(f"/__debug__/render_panel/?request_id={request_id}&panel_id=DurablePanel")
    side = re.search(r"<small>([^<]*\bverbs? in [^<]*)</small>", content)
    assert shown.status_code == 200, shown.content
    return {**stats, "html": shown.json()["content"], "side": side[1] if side else ""}


async def asked(address: str) -> str:
    """A page by ASGI."""
    return (await AsyncClient().get(address)).content.decode()


call_command("migrate", verbosity=0)
found = {address: panel_of(Client().get(address).content.decode()) for address in ("/kinds/", "/many/", "/nothing/")}
found["/loop/"] = panel_of(asyncio.run(asked("/loop/")))
with transaction.atomic():
    found["/unfinished/"] = panel_of(Client().get("/unfinished/").content.decode())
print(json.dumps(found))
