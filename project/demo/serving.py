"""Serves the shop and the admin on a loopback port, until it is interrupted."""

import errno
import secrets

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler, get_internal_wsgi_application

__all__ = ["bind", "demo_login", "make_colleague", "serve"]

HOST = "127.0.0.1"
PORTS_TO_TRY = 50
HIGHEST_PORT = 65_535


def bind(port: int) -> ThreadedWSGIServer:
    """A server on `port`, or on the next one that is free. Raises OSError where none is."""
    ports = range(port, min(port + PORTS_TO_TRY, HIGHEST_PORT + 1))
    for candidate in ports:
        try:
            server = ThreadedWSGIServer((HOST, candidate), WSGIRequestHandler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        server.daemon_threads = True
        return server
    raise OSError(errno.EADDRINUSE, f"the ports {ports[0]} to {ports[-1]} are all taken; pass another --port")


def serve(server: ThreadedWSGIServer) -> None:
    """Answer requests until interrupted."""
    server.set_app(StaticFilesHandler(get_internal_wsgi_application()))
    server.serve_forever()


def demo_login() -> tuple[str, str]:
    """A superuser `demo` with a new password each time: user name and password."""
    password = secrets.token_urlsafe(9)
    users = get_user_model()
    user, _ = users.objects.get_or_create(username="demo")
    user.is_staff = user.is_superuser = True
    user.set_password(password)
    user.save()
    return "demo", password


def make_colleague() -> None:
    """Somebody else who may refund: `mia`, who has no password, and answers from the links of her mails."""
    mia, _ = get_user_model().objects.get_or_create(username="mia", defaults={"email": "mia@example.org"})
    mia.user_permissions.add(Permission.objects.get(codename="add_refund", content_type__app_label="shop"))
