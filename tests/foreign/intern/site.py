"""The project's admin site: another name, an index of its own, no list of all apps beside each page."""

from __future__ import annotations

import os
from typing import Any

from django.contrib.admin.apps import AdminConfig
from django.utils.module_loading import import_string

_UNFOLD = os.environ.get("ADMIN_THEME") == "unfold"
Site: Any = import_string("unfold.sites.UnfoldAdminSite" if _UNFOLD else "django.contrib.admin.AdminSite")


class InternSite(Site):  # type: ignore[misc]  # the theme's class, or Django's
    """The only site of the project."""

    site_header = "Verwaltung"
    index_template = "intern/index.html"
    enable_nav_sidebar = False

    def __init__(self, name: str = "intern") -> None:
        super().__init__(name)


class InternConfig(AdminConfig):
    """`django.contrib.admin` with that site."""

    default_site = "tests.foreign.intern.site.InternSite"
