"""The project's admin site: another name, an index of its own, no list of all apps beside each page."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig


class InternSite(AdminSite):
    """The only site of the project."""

    site_header = "Verwaltung"
    index_template = "intern/index.html"
    enable_nav_sidebar = False

    def __init__(self, name: str = "intern") -> None:
        super().__init__(name)


class InternConfig(AdminConfig):
    """`django.contrib.admin` with that site."""

    default_site = "tests.foreign.intern.site.InternSite"
