"""A site of one theme, for a browser: rows of runs, a user who is logged in, and a server that says where it listens.

`python -m tests.themes.site`, where the environment has ADMIN_THEME, DATABASE_URL (a SQLite file) and
DJANGO_SETTINGS_MODULE=tests.themes.settings.
"""

from __future__ import annotations

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


def _fill() -> None:
    """Run the shop's workflows of the tests: some completed, some failed for one cause, one that waits."""
    from django.contrib.auth.models import User

    from tests.admin import flows
    from tests.admin.conftest import staged

    User.objects.create_superuser("ada")
    with staged() as stage:
        flows.SWITCH["broken"] = True
        for number in range(8):
            stage.start(flows.switched, number, id=f"order-2026-11-27-of-the-northern-warehouse-{number}")
        flows.SWITCH["broken"] = False
        stage.start(flows.many, 12, id="many")
        stage.start(flows.approve, id="waits")


def main() -> None:
    """Serve until the process is ended."""
    django.setup()
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application

    call_command("migrate", verbosity=0)
    _fill()
    server = _Server(("127.0.0.1", 0), _Quiet)
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
