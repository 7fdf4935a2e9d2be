"""The project's addresses, and its static files, which a web server would have below the same path."""

from django.contrib.staticfiles.views import serve
from django.urls import re_path

from project.urls import urlpatterns as of_project

urlpatterns = [re_path(r"^static/(?P<path>.*)$", serve), *of_project]
