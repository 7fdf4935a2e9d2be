"""The directive `openapi-operations <file>`: it shows the operations and schemas of an OpenAPI document on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

__all__ = ["Operations", "setup"]

JSON = "application/json"


class Operations(SphinxDirective):
    """Sections by tag, one for each operation; then one for each schema that is not a list's page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir) / self.arguments[0]
        self.env.note_dependency(str(path))
        document = yaml.safe_load(path.read_text())
        return self.parse_text_to_nodes("\n".join(_markdown(document)), allow_section_headings=True)


def _markdown(document: Mapping[str, Any]) -> Iterator[str]:
    operations = [
        (path, method, operation) for path, item in document["paths"].items() for method, operation in item.items()
    ]
    operations.sort(key=lambda each: each[2]["tags"][0])
    for tag, group in groupby(operations, key=lambda each: each[2]["tags"][0]):
        yield f"## {tag.capitalize()}\n"
        for path, method, operation in group:
            yield from _operation(path, method, operation)
    yield "## Schemas\n"
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`\n"
    yield f"{operation['description']}\n"
    if parameters := operation.get("parameters"):
        yield "| parameter | in | |\n| --- | --- | --- |"
        for each in parameters:
            yield f"| `{each['name']}` | {each['in']} | {_cell(each.get('description', ''), each['schema'])} |"
        yield ""
    if body := operation.get("requestBody"):
        yield f"Body: {_type(body['content'][JSON]['schema'])}\n"
    answers: dict[str, list[str]] = {}
    for status, answer in operation["responses"].items():
        shapes = {_type(each["schema"]) for each in answer.get("content", {}).values() if "schema" in each}
        answers.setdefault(" or ".join(sorted(shapes)), []).append(status)
    yield (
        "Answers: " + "; ".join(f"{', '.join(statuses)} {shape}".strip() for shape, statuses in answers.items()) + "\n"
    )


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"(schema-{name.lower()})=\n"
    yield f"### {name}\n"
    yield f"{schema.get('description', '')}\n"
    if properties := schema.get("properties"):
        required = schema.get("required", ())
        yield "| name | | |\n| --- | --- | --- |"
        for key, value in properties.items():
            yield f"| `{key}` | {'' if key in required else 'optional'} | {_cell(value.get('description', ''), value)} |"
        yield ""


def _cell(text: str, schema: Mapping[str, Any]) -> str:
    return " ".join(f"{_type(schema)}. {text}".split()).replace("|", "\\|")


def _type(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#schema-{name.lower()})"
    for key in ("oneOf", "anyOf", "allOf"):
        if key in schema:
            return " or ".join(_type(each) for each in schema[key])
    if "enum" in schema:
        return "one of " + ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    kinds = schema.get("type", "anything")
    text = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    bounds = ", ".join(f"{key} {schema[key]}" for key in ("format", "minimum", "maximum", "default") if key in schema)
    return f"{text} ({bounds})" if bounds else text


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's hook."""
    app.add_directive("openapi-operations", Operations)
    return {"parallel_read_safe": True}
