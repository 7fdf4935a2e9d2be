"""The settings of that project, and what the environment may say of it.

WITHOUT_DURABLE leaves durable out, for a comparison. MOUNTED_AT is the path below which a server has the project,
SERVED_BY=asgi serves it by ASGI. ADMIN_THEME is another theme of the admin (unfold, jazzmin). AGENT is the agent that
traces the database: ddtrace, or else the tests' own proxies.
"""

from __future__ import annotations

import os
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from project.settings import TEMPLATES as BASE_TEMPLATES
from project.settings import database_from
from tests.support.proxies import wrap_connections

MOUNTED_AT = os.environ.get("MOUNTED_AT", "")
IS_ASGI = os.environ.get("SERVED_BY") == "asgi"
if IS_ASGI:
    FORCE_SCRIPT_NAME = MOUNTED_AT or None

SECRET_KEY = "of a project under tests, which listens nowhere"
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
STATIC_URL = "static/"

#: The application of each theme; it comes before the admin, whose site is the project's own.
THEMES = {"": [], "unfold": ["unfold.apps.BasicAppConfig"], "jazzmin": ["jazzmin"]}
INSTALLED_APPS = [
    *THEMES[os.environ.get("ADMIN_THEME", "")],
    "tests.foreign.intern.site.InternConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "tests.foreign.intern",
    *([] if os.environ.get("WITHOUT_DURABLE") else ["durable"]),
]
AUTH_USER_MODEL = "intern.Member"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
LOGIN_URL = "admin:login"
ROOT_URLCONF = "tests.foreign.intern.urls"
MIDDLEWARE = [
    "django.middleware.gzip.GZipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{**BASE_TEMPLATES[0], "DIRS": []}]
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

_HERE = {**database_from(os.environ["DATABASE_URL"]), "CONN_MAX_AGE": 0 if IS_ASGI else 600}


def _replica() -> dict[str, Any]:
    """The same rows, which nobody can change there."""
    options: dict[str, Any] = {**_HERE.get("OPTIONS", {})}
    if _HERE["ENGINE"] == "django.db.backends.sqlite3":
        options["init_command"] = "PRAGMA query_only = 1;"
    else:
        options["options"] = "-c default_transaction_read_only=on"
    return {**_HERE, "OPTIONS": options}


DATABASES = {"default": _HERE, "replica": _replica()}
DATABASE_ROUTERS = ["tests.foreign.intern.settings.Reading"]


SILENCED_SYSTEM_CHECKS = ["durable.W084"]  # which asks for a router that knows of durable: this one does not


class Reading:
    """Reads of all apps go to the replica; durable's own must not follow."""

    def db_for_read(self, model: type[object], **hints: object) -> str:
        return "replica"

    def db_for_write(self, model: type[object], **hints: object) -> str:
        return "default"

    def allow_relation(self, one: object, other: object, **hints: object) -> bool:
        return True

    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool:
        return db == "default"


REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.PageNumberPagination",
    "PAGE_SIZE": 1,
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_THROTTLE_CLASSES": [
        "rest_framework.throttling.AnonRateThrottle",
        "rest_framework.throttling.UserRateThrottle",
        "rest_framework.throttling.ScopedRateThrottle",
    ],
    "DEFAULT_THROTTLE_RATES": {"anon": "10/day", "user": "100000/hour"},
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}
DURABLE = {"REDIS": False}


class Counting(Transport):
    """Keeps events, and counts what else would be sent."""

    events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events += [event for item in envelope.items if (event := item.get_event()) is not None]


match os.environ.get("AGENT"):
    case "ddtrace":  # as `ddtrace-run` does
        import ddtrace.auto  # noqa: F401
    case _:
        wrap_connections()
sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=Counting, traces_sample_rate=1.0)
