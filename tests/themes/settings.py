"""The project with another theme of the admin, which the environment names, on a SQLite file and without Redis."""

import os
from typing import Any, Final

from project.settings import *  # noqa: F403
from project.settings import DURABLE, INSTALLED_APPS, MIDDLEWARE, TEMPLATES

#: The applications of each theme; they come before the admin. "none" is Django's own look.
THEMES: Final = {
    "none": (),
    "unfold": ("unfold",),
    "jazzmin": ("jazzmin",),
    "grappelli": ("grappelli",),
    "admin_interface": ("admin_interface", "colorfield"),
    "django_daisy": ("django_daisy", "django.contrib.humanize"),
}
THEME: Final = os.environ.get("ADMIN_THEME", "none")

INSTALLED_APPS = [*THEMES[THEME], *INSTALLED_APPS]
#: A theme's pages have scripts and styles in the page, which the project's policy forbids.
MIDDLEWARE = [
    *(each for each in MIDDLEWARE if each != "project.csp.ContentSecurityPolicy"),
    "tests.themes.site.logged_in",
]
_OPTIONS: dict[str, Any] = TEMPLATES[0]["OPTIONS"]  # type: ignore[assignment]  # a dict, as settings have it
_PROCESSORS = [*_OPTIONS["context_processors"], "django.template.context_processors.i18n"]
TEMPLATES = [{**TEMPLATES[0], "OPTIONS": {**_OPTIONS, "context_processors": _PROCESSORS}}]
DURABLE: dict[str, Any] = {**DURABLE, "REDIS": False}  # type: ignore[no-redef]  # of a star import
#: As the screen: Jazzmin is light unless this says otherwise.
JAZZMIN_UI_TWEAKS = {"default_theme_mode": "auto"}
FORCE_SCRIPT_NAME = "/shop"
ROOT_URLCONF = "tests.themes.urls"
X_FRAME_OPTIONS = "SAMEORIGIN"
SILENCED_SYSTEM_CHECKS = ["security.W019"]
