"""The project's addresses. Owns the map only; apps bring their own."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

admin.autodiscover()  # for a process that has not: see `project.admin_app`

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("project.shop.urls")),
    path("admin/", admin.site.urls),
    path("api/", include("durable.api.urls")),
    path("durable/", include("durable.hooks.urls")),
    path("metrics/", include("durable.metrics.urls")),
]
