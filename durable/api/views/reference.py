"""The interface's own description: as a page for people, and as the OpenAPI document for programs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from django.http import HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.reference import operations_by_subject, paragraphs, schemas_of
from durable.api.schema import described, document
from durable.api.views.base import View


@cache
def _document() -> Mapping[str, Any]:
    """Return the document of this process; it takes a moment to make."""
    return document()


class RootView(View):
    """The interface's prefix."""

    about = "surroundings"

    @described(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        """Lead to the page of operations."""
        return HttpResponseRedirect("docs")


class DocsView(View):
    """All operations on one page, rendered by the server: no script, nothing of another site."""

    about = "surroundings"

    @described(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        """Return the page."""
        found = _document()
        context = {
            "info": found["info"],
            "about": paragraphs(found["info"]["description"]),
            "prefix": request.path.removesuffix("/docs"),
            "subjects": operations_by_subject(found),
            "schemas": schemas_of(found),
        }
        return HttpResponse(render_to_string("durable/api/docs.html", context, request))


class SchemaView(View):
    """The OpenAPI document."""

    about = "surroundings"

    @described(exclude=True)
    def get(self, request: Request) -> Response:
        """Return the document as JSON, with the prefix at which it was asked for as the server."""
        server = {"url": request.path.removesuffix("/schema") or "/"}
        return Response({**_document(), "servers": [server]})
