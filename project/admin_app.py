"""The admin, for the processes that have pages.

Owns where the admin's modules are imported: with the addresses. A worker and a command of durable's have none to serve,
and start in four fifths of the time and with less memory. One that writes an address into a text imports them then.
"""

import sys

from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig

__all__ = ["AdminConfig"]

WITHOUT_PAGES = frozenset({"durable", "durable_worker"})


class AdminConfig(SimpleAdminConfig):
    """`django.contrib.admin`, whose modules those commands do not import at their start."""

    def ready(self) -> None:
        """Register the checks, and import the `admin` module of every app unless the command needs none."""
        super().ready()
        if not WITHOUT_PAGES.intersection(sys.argv[1:2]):
            admin.autodiscover()
