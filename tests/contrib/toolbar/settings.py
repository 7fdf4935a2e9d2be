"""The project with django-debug-toolbar."""

from debug_toolbar.settings import PANELS_DEFAULTS

from project.settings import *  # noqa: F403
from project.settings import DURABLE, INSTALLED_APPS, MIDDLEWARE

DEBUG = True
DURABLE = {**DURABLE, "REDIS": False}
INSTALLED_APPS = [*INSTALLED_APPS, "debug_toolbar", "tests.contrib.toolbar"]
MIDDLEWARE = ["debug_toolbar.middleware.DebugToolbarMiddleware", *MIDDLEWARE]
DEBUG_TOOLBAR_PANELS = [*PANELS_DEFAULTS, "durable.contrib.debug_toolbar.DurablePanel"]
INTERNAL_IPS = ["127.0.0.1"]
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "tests.contrib.toolbar.urls"
