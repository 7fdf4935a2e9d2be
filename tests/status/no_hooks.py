"""Addresses of a project that has not included `durable.hooks.urls`."""

urlpatterns: list[object] = []
