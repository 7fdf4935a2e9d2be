"""The OpenAPI document: what drf-spectacular finds in the views, and the parts that all views share.

`python -m durable.api.schema` prints it as YAML. It does not depend on the project that runs this: every setting of
drf-spectacular that affects the document is given here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, TypeVar

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import get_doc
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_serializer
from rest_framework import serializers

M = TypeVar("M", bound=Callable[..., Any])

PROBLEM: Final = "application/problem+json"
#: The prefix of all component names.
PREFIX: Final = "Durable"

#: Statuses of problems that any endpoint may return, and statuses that need a path or a body.
_ALWAYS: Final = (400, 401, 403, 404, 429)
_WITH_BODY: Final = (409, 411, 413, 415, 422)
#: Names of statuses by RFC 9110; Python before 3.13 has older ones.
_RENAMED: Final = {"413": "Content Too Large", "422": "Unprocessable Content"}

_KEY: Final = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description=(
        "Makes the request safe to repeat: with the same key and the same request it is done once and answered alike, for "
        "a day. 1 to 255 printable ASCII characters."
    ),
)

_SETTINGS: Final[dict[str, Any]] = {
    "TITLE": "durable",
    "DESCRIPTION": (
        "Runs of durable workflows: start, find, read, steer and replay them.\n\nErrors are problem documents (RFC 9457); "
        "their `code` is stable. Lists are paged by `cursor`, without totals. Payloads need the permission "
        "`durable.view_payload`."
    ),
    "SCHEMA_PATH_PREFIX": "",
    "SCHEMA_PATH_PREFIX_TRIM": False,
    "COMPONENT_SPLIT_REQUEST": True,
    "COMPONENT_NO_READ_ONLY_REQUIRED": False,
    "COMPONENT_SPLIT_PATCH": False,
    "ENUM_NAME_OVERRIDES": {},
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_ADD_EXPLICIT_BLANK_NULL_CHOICE": False,
    "PREPROCESSING_HOOKS": [],
    "POSTPROCESSING_HOOKS": [],
    "CAMELIZE_NAMES": False,
    "SERVERS": [{"url": "/api", "description": "wherever the interface is included"}],
    "TAGS": [],
    "SECURITY": [],
    "AUTHENTICATION_WHITELIST": [],
    "APPEND_COMPONENTS": {},
    "EXTENSIONS_INFO": {},
    "EXTENSIONS_ROOT": {},
    "OAS_VERSION": "3.1.0",
    "SORT_OPERATIONS": True,
    "SORT_OPERATION_PARAMETERS": True,
    "GENERIC_ADDITIONAL_PROPERTIES": "dict",
}


class FaultSerializer(serializers.Serializer[Any]):
    """One fault of a request."""

    at = serializers.CharField(help_text="The name in the request, as a path: `args/0`; empty for the whole.")
    detail = serializers.CharField()
    code = serializers.CharField()


@extend_schema_serializer(component_name="Problem")
class ProblemSerializer(serializers.Serializer[Any]):
    """A problem document (RFC 9457). Problems have further members of their own, such as `state` and `allowed`."""

    type = serializers.CharField(help_text="`urn:durable:problem:<code>`")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField(help_text="What was expected, what was found, and what to do.")
    instance = serializers.CharField(help_text="The path of the request.")
    code = serializers.CharField(help_text="Stable: what a program goes by.")
    errors = FaultSerializer(  # type: ignore[assignment]  # DRF removes fields from the class
        many=True, required=False, help_text="Of an invalid request: each fault."
    )
    state = serializers.CharField(required=False, help_text="The run's state, where that is in the way.")
    allowed = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="The states in which the action is allowed."
    )


class Description(AutoSchema):
    """The description of an endpoint: its problems, and the key of a change."""

    def get_override_parameters(self) -> list[Any]:
        """Return the header of every POST."""
        return [_KEY] if self.method == "POST" else []

    def _get_format_parameters(self) -> list[Any]:
        """Return no parameters: only `Accept` selects the format of an answer."""
        return []

    def get_auth(self) -> list[Any]:
        """Return nothing: the host decides how to authenticate."""
        return []

    def get_description(self) -> str:  # type: ignore[override]  # its own method returns the same
        """Return the docstring of the method; the class docstring is about the code."""
        return get_doc(getattr(self.view, self.method.lower()))

    def _get_serializer_name(self, *args: Any, **kwargs: Any) -> str:
        """Return the component's name, prefixed so that it does not clash with the host's serializers in one
        document.
        """
        name: str = super()._get_serializer_name(*args, **kwargs)
        return name if name.startswith(PREFIX) else f"{PREFIX}{name}"

    def _map_serializer(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the schema, with each choice one level deeper.

        drf-spectacular names the choices of a document by their fields. Ours would change the names of the host's.
        """
        mapped: Any = super()._map_serializer
        schema: dict[str, Any] = mapped(*args, **kwargs)
        properties = schema.get("properties", {})
        schema["properties"] = {name: _without_choice(each) for name, each in properties.items()}
        return schema

    def get_tags(self) -> list[str]:
        return [self.view.about]  # type: ignore[attr-defined]  # of durable.api.base.View

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        found: dict[str, Any] = super()._get_response_bodies(direction)
        describe: Any = self._get_response_for_code
        for status in (*_ALWAYS, *(_WITH_BODY if self.method == "POST" else ())):
            if str(status) not in found:
                found[str(status)] = describe(ProblemSerializer, str(status), [PROBLEM], direction)
        return dict(sorted(found.items()))


def described(**options: Any) -> Callable[[M], M]:
    """Apply `extend_schema` to a view's method, on top of `Description` and not of the host's default."""

    def decorate(method: M) -> M:
        method.schema = Description  # type: ignore[attr-defined]  # drf-spectacular looks here first
        return extend_schema(**options)(method)

    return decorate


def document() -> dict[str, Any]:
    """Return the OpenAPI document of `durable.api.urls`, with paths relative to the prefix."""
    from drf_spectacular import generators
    from drf_spectacular.settings import patched_settings

    import durable

    with patched_settings({**_SETTINGS, "VERSION": durable.__version__}):
        generator: Any = generators.SchemaGenerator
        found: dict[str, Any] = generator(urlconf="durable.api.urls").get_schema(public=True)
    _tell(found)
    plain: dict[str, Any] = _plain(found)
    return plain


def _tell(found: dict[str, Any]) -> None:
    """Add what drf-spectacular omits: the meaning of a status, and that forms accept no other names."""
    for path in found["paths"].values():
        for operation in path.values():
            for status, response in operation["responses"].items():
                name = _RENAMED.get(status) or HTTPStatus(int(status)).phrase
                response["description"] = response["description"] or name
    for name, schema in found["components"]["schemas"].items():
        if name.endswith(("Form", "FormRequest")):
            schema["additionalProperties"] = False


def _without_choice(node: Any) -> Any:
    """Return the schema of a field whose choices drf-spectacular's hooks do not find. `_plain` reverts it."""
    if not isinstance(node, dict):
        return node
    if "items" in node:
        return {**node, "items": _without_choice(node["items"])}
    if "enum" not in node:
        return node
    inner = {name: each for name, each in node.items() if name in ("enum", "type", "x-spec-enum-id")}
    return {"allOf": [inner], **{name: each for name, each in node.items() if name not in inner}}


def _plain(node: Any) -> Any:
    """Drop the generator's own keys, and simplify "any value, or else null": any value may be null."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    if "enum" in (node.get("allOf") or [{}])[0]:
        node = {**node["allOf"][0], **{name: each for name, each in node.items() if name != "allOf"}}
    if node.get("oneOf") == [{}, {"type": "null"}]:
        node = {name: each for name, each in node.items() if name != "oneOf"}
    return {name: _plain(each) for name, each in node.items() if name != "x-spec-enum-id"}


def text() -> str:
    """Return the document as YAML."""
    from drf_spectacular.renderers import OpenApiYamlRenderer

    renderer: Any = OpenApiYamlRenderer()
    rendered: bytes = renderer.render(document(), renderer_context={})
    return rendered.decode()


if __name__ == "__main__":
    import django

    django.setup()
    sys.stdout.write(text())
