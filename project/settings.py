"""The project's settings: a development server, the demo and the tests all use these.

Owns the settings of Django, RQ and durable; decides nothing at run time. Which database and which Redis is decided by
the environment alone (`DATABASE_URL`, `REDIS_URL`), so that embedded servers, containers and a production host differ
in nothing else. Must not connect to either.
"""

import os
from pathlib import Path
from typing import Any

import dj_database_url
import django
from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = BASE_DIR / "var"

# On for these three words alone. `manage.py` sets it for its development commands, the tests for themselves.
DEBUG = os.environ.get("DEBUG", "").strip().lower() in {"1", "true", "yes"}

SECRET_KEY = os.environ.get("SECRET_KEY", "")
if not SECRET_KEY:
    if DEBUG:
        SECRET_KEY = "development only: known to everyone who has read this file, refused without DEBUG"  # noqa: S105
    elif "DEBUG" in os.environ:
        raise ImproperlyConfigured("Without DEBUG the environment variable SECRET_KEY must hold a long random text.")
    else:  # a command in an environment that says nothing: a key that is shown nowhere, and that ends with the process
        SECRET_KEY = get_random_secret_key()

_LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]
_HOSTS = [host.strip() for host in os.environ.get("ALLOWED_HOSTS", "").split(",") if host.strip()]
if DEBUG and (foreign := sorted(set(_HOSTS) - {*_LOOPBACK, "::1"})):
    raise ImproperlyConfigured(
        f"DEBUG shows settings and source to everyone who reaches the site, and ALLOWED_HOSTS has {', '.join(foreign)}: "
        "leave DEBUG out, or serve on a loopback address only."
    )
ALLOWED_HOSTS = [*_LOOPBACK, *_HOSTS]

INSTALLED_APPS = [
    "project.admin_app.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_rq",
    "rest_framework.authtoken",
    "durable",
    "project.shop",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "project.csp.ContentSecurityPolicy",
    "project.shop.branches.ChosenBranch",
]

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
ASGI_APPLICATION = "project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


def database_from(url: str) -> dict[str, Any]:
    """The settings of one database, from its URL; connections are kept between passes and checked before reuse."""
    config: dict[str, Any] = {**dj_database_url.parse(url, conn_max_age=60, conn_health_checks=True)}
    if config["ENGINE"] == "django.db.backends.sqlite3":
        # Take the write lock at BEGIN: a transaction that reads first and then writes would otherwise fail at once
        # beside another writer, instead of waiting for its turn.
        config["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;",
            **config.get("OPTIONS", {}),
        }
    return config


DATABASE_URL = os.environ.get("DATABASE_URL") or f"sqlite:///{VAR_DIR / 'db.sqlite3'}"
if "DATABASE_URL" not in os.environ:
    VAR_DIR.mkdir(exist_ok=True)
DATABASES = {"default": database_from(DATABASE_URL)}
if django.VERSION < (6, 1):
    EMAIL_BACKEND = "project.shop.services.post.Postman"
else:
    MAILERS = {"default": {"BACKEND": "project.shop.services.post.Postman"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = os.environ.get("REDIS_URL") or "redis://127.0.0.1:6379/0"
RQ_QUEUES = {
    # JSON, so that workers read no pickles. Redis still has to be guarded like the code: a password, TLS, its own
    # instance.
    name: {"URL": REDIS_URL, "SERIALIZER": "rq.serializers.JSONSerializer", "DEFAULT_TIMEOUT": -1}
    for name in ("default", "high")
}
# `manage.py rqworker` reads pickles, whatever SERIALIZER says, unless its worker class knows better.
RQ = {"WORKER_CLASS": "durable.rq_workers.Worker"}

DURABLE = {
    # for links in mails, and for those that the bank gets
    "BASE_URL": os.environ.get("BASE_URL", "http://127.0.0.1:8000"),
    # the carrier's interface allows five labels a second
    "LIMITS": {"carrier": {"rate": "5/s"}},
    # an order's run knows the branch of the shop at which it was placed
    "CARRY": {"branch": "project.shop.branches.carry"},
    "LEASE": float(os.environ.get("DURABLE_LEASE", "30")),  # seconds
    "PARTITIONS": int(os.environ.get("DURABLE_PARTITIONS", "0")),
    "NOTIFY_IN_TESTS": True,  # durable's own tests have a Redis of their own, and workers that listen to it
}

# How the REST interface recognises somebody; what a user may do there is durable's own.
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework.authentication.BasicAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
}

# How long things take in the shop: durations as text, the latency of the bank, the carrier and the post in seconds.
# And the secret with which the bank signs.
SHOP: dict[str, Any] = {
    "BANK_SECRET": os.environ.get("SHOP_BANK_SECRET", "known to the fake bank and to the shop"),
    "APPROVAL_DEADLINE": os.environ.get("SHOP_APPROVAL_DEADLINE", "2 days"),
    "CART_PATIENCE": os.environ.get("SHOP_CART_PATIENCE", "1 day"),
    "COOL_OFF": os.environ.get("SHOP_COOL_OFF", "1 minute"),
    "MAIL_PAUSE": os.environ.get("SHOP_MAIL_PAUSE", "3 days"),
    "MONTH": os.environ.get("SHOP_MONTH", "30 days"),
    "NAP": os.environ.get("SHOP_NAP", "3 hours"),
    "REFUND_DEADLINE": os.environ.get("SHOP_REFUND_DEADLINE", "10 days"),
    "SERVICE_LATENCY": float(os.environ.get("SHOP_SERVICE_LATENCY", "0")),
    "TRANSFER_DEADLINE": os.environ.get("SHOP_TRANSFER_DEADLINE", "3 days"),
}

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"

LOGIN_URL = "admin:login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("MinimumLengthValidator", "CommonPasswordValidator", "NumericPasswordValidator")
]

# Over plain http on a loopback address the browser must still send its cookies; anywhere else DEBUG is off.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not DEBUG
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_HTTPONLY = True
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {"durable": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "INFO"), "propagate": True}},
}
