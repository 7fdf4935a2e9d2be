"""A site of one theme, for a browser: rows of runs, a user who is logged in, and a server that says where it listens.

The server has the project below a path, as many have: what a page loads or asks for by itself is found there only.

`python -m tests.themes.site`, where the environment has ADMIN_THEME, DATABASE_URL (a SQLite file) and
DJANGO_SETTINGS_MODULE=tests.themes.settings.
"""

from __future__ import annotations

import json
import socketserver
import sys
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import django
from django.http import HttpRequest, HttpResponse


def logged_in(answer: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Answer every request as the site's only user."""

    def as_user(request: HttpRequest) -> HttpResponse:
        from django.contrib.auth.models import User

        request.user = User.objects.get(username="ada")
        return answer(request)

    return as_user


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


#: One page of each of these is looked at, and those of two runs: one has failed, the other waits for a message.
KINDS = ("app_list", "changelist", "cause", "queues", "workflow", "schedule", "step", "replay", "log", "index")
RUNS = {"failed": "run-18", "waits": "run-6"}


def _fill() -> dict[str, str]:
    """Runs of every kind, and what operators did to them; the pages to look at."""
    from django.contrib.auth.models import User
    from django.urls import reverse

    from project.shop.models import Customer, Order
    from tests.admin import flows
    from tests.admin.conftest import staged
    from tests.admin.every_page import addresses, fill
    from tests.admin.pages import url

    ada = User.objects.create_superuser("ada")
    with staged() as stage:
        flows.SWITCH["broken"] = True
        for number in range(8):
            stage.start(flows.switched, number, id=f"order-2026-11-27-of-the-northern-warehouse-{number}")
        flows.SWITCH["broken"] = False
        stage.start(flows.many, 12, id="many")
        customer = Customer.objects.create(name="Ada", email="ada@example.org")
        order = Order.objects.create(customer=customer, total=990)
        flows.SWITCH["broken"] = True
        stage.start(flows.switched.using(about=order), 8, id="about-order-failed")
        flows.SWITCH["broken"] = False
        stage.start(flows.quick.using(about=order), 1, id="about-order-quick")
        stage.start(flows.saga.using(about=order), 2, id="about-order-saga")
        stage.start(flows.approve.using(about=order), order.pk, id="about-order-waits")
        fill(stage, ada)
    objects = {
        "objects": reverse("admin:shop_order_changelist"),
        "object": reverse("admin:shop_order_change", args=[order.pk]),
    }
    of_each = addresses()
    return (
        {name: of_each[name][0] for name in KINDS} | {name: url("change", run) for name, run in RUNS.items()} | objects
    )


def main() -> None:
    """Serve below the path of the settings until the process is ended; print where, and the pages."""
    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application

    call_command("migrate", verbosity=0)
    pages = _fill()
    application, prefix = get_wsgi_application(), settings.FORCE_SCRIPT_NAME

    def below(environ: dict[str, Any], start: Any) -> Any:
        if not environ["PATH_INFO"].startswith(f"{prefix}/"):
            start("404 Not Found", [])
            return []
        return application({**environ, "PATH_INFO": environ["PATH_INFO"].removeprefix(prefix)}, start)

    server = _Server(("127.0.0.1", 0), _Quiet)
    server.set_app(below)
    sys.stdout.write(json.dumps({"address": f"http://127.0.0.1:{server.server_port}", "pages": pages}) + "\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
