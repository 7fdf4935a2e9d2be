"""The project's addresses, and its static files, which a web server would have below the same path."""

from django.apps import apps
from django.contrib.staticfiles.views import serve
from django.urls import include, path, re_path

from project.urls import urlpatterns as of_project

urlpatterns = [re_path(r"^static/(?P<path>.*)$", serve), *of_project]
if apps.is_installed("grappelli"):  # what a foreign key's field asks
    urlpatterns.insert(0, path("grappelli/", include("grappelli.urls")))
