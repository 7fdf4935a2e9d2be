"""The interface's own description: the OpenAPI document for programs, and the same as a page for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from django.http import HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.base import View
from durable.api.schema import described, document

_JSON: Final = "application/json"
_CODE: Final = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A parameter, or a field of a schema.

    `note` says where a parameter stands, or whether a field is optional.
    """

    name: str
    note: str
    type: SafeString
    text: SafeString


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method of a path. `answers` are statuses with what they bring."""

    id: str
    method: str
    path: str
    paragraphs: Sequence[SafeString]
    parameters: Sequence[Row]
    body: SafeString | None
    answers: Sequence[tuple[str, SafeString]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A named shape of a body."""

    name: str
    text: SafeString
    fields: Sequence[Row]


def operations_by_subject(document: Mapping[str, Any]) -> list[tuple[str, list[Operation]]]:
    """Return the operations of each subject, in the order of the document."""
    found: dict[str, list[Operation]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            found.setdefault(operation["tags"][0], []).append(_operation(path, method, operation))
    return sorted(found.items())


def schemas_of(document: Mapping[str, Any]) -> list[Schema]:
    return [
        Schema(name=name, text=_text(schema.get("description", "")), fields=list(_fields(schema)))
        for name, schema in document["components"]["schemas"].items()
    ]


def paragraphs(text: str) -> list[SafeString]:
    """Return the paragraphs of a description, with their `code` marked."""
    return [_text(each) for each in text.split("\n\n")]


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Operation:
    body = operation.get("requestBody")
    answers: dict[str, list[str]] = {}
    for status, answer in operation["responses"].items():
        shapes = sorted({_type(each["schema"]) for each in answer.get("content", {}).values() if "schema" in each})
        answers.setdefault(format_html_join(" or ", "{}", ((each,) for each in shapes)), []).append(status)
    return Operation(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        paragraphs=paragraphs(operation.get("description", "")),
        parameters=[
            Row(
                name=each["name"],
                note=f"{each['in']}{'' if each.get('required') else ', optional'}",
                type=_type(each["schema"]),
                text=_text(each.get("description", "")),
            )
            for each in operation.get("parameters", ())
        ],
        body=None if body is None else _type(body["content"][_JSON]["schema"]),
        answers=[(", ".join(statuses), mark_safe(shape)) for shape, statuses in answers.items()],  # noqa: S308  # made above
    )


def _fields(schema: Mapping[str, Any]) -> Iterator[Row]:
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        note = "" if name in required else "optional"
        yield Row(name=name, note=note, type=_type(each), text=_text(each.get("description", "")))


def _text(text: str) -> SafeString:
    """Return a paragraph with its `code` marked."""
    return mark_safe(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S308  # escaped


def _type(schema: Mapping[str, Any]) -> SafeString:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return format_html('<a href="#schema-{}">{}</a>', name, name)
    for key in ("oneOf", "anyOf", "allOf"):
        if key in schema:
            return format_html_join(" or ", "{}", ((_type(each),) for each in schema[key]))
    if "enum" in schema:
        return format_html_join(", ", "<code>{}</code>", ((each,) for each in schema["enum"]))
    if schema.get("type") == "array":
        return format_html("list of {}", _type(schema["items"]))
    kinds = schema.get("type", "anything")
    text = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    bounds = ", ".join(f"{key} {schema[key]}" for key in ("format", "minimum", "maximum", "default") if key in schema)
    return format_html("{}", f"{text} ({bounds})" if bounds else text)


@cache
def _document() -> Mapping[str, Any]:
    """Return the document of this process; it takes a moment to make."""
    return document()


class RootView(View):
    about = "surroundings"

    @described(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        return HttpResponseRedirect("docs")


class DocsView(View):
    """All operations on one page, rendered by the server: no script, nothing of another site."""

    about = "surroundings"

    @described(exclude=True)
    def get(self, request: Request) -> HttpResponse:
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
    about = "surroundings"

    @described(exclude=True)
    def get(self, request: Request) -> Response:
        """Return the document as JSON, with the prefix at which it was asked for as the server."""
        server = {"url": request.path.removesuffix("/schema") or "/"}
        return Response({**_document(), "servers": [server]})
