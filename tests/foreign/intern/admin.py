"""The project's admin site, and what it has registered there."""

from __future__ import annotations

from django.contrib import admin

from tests.foreign.intern.models import Member, Race

admin.site.register(Race)
admin.site.register(Member)
