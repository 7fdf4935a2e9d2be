"""The texts of durable that are marked for translation, found in its modules and its templates.

Modules are parsed, and templates go through Django's own `templatize`. So nothing depends on the tools of GNU gettext,
which not every machine has.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from babel.messages.catalog import Catalog
from django.utils.translation.template import templatize

PACKAGE: Final = Path(__file__).resolve().parents[3] / "durable"

#: The positions of the context, the text and the plural among the arguments of the functions that mark a text.
_MARKS: Final[dict[str, tuple[int | None, int, int | None]]] = {
    "_": (None, 0, None),
    "gettext": (None, 0, None),
    "gettext_lazy": (None, 0, None),
    "gettext_noop": (None, 0, None),
    "ngettext": (None, 0, 1),
    "ngettext_lazy": (None, 0, 1),
    "pgettext": (0, 1, None),
    "pgettext_lazy": (0, 1, None),
    "npgettext": (0, 1, 2),
}


@dataclass(frozen=True, slots=True)
class Marked:
    """A text in the source: its context or None, the text, its plural or None, and the file it is in."""

    context: str | None
    text: str
    plural: str | None
    path: str


def marked_texts(package: Path = PACKAGE) -> Iterator[Marked]:
    """Yield the marked texts of the package, file by file."""
    for path in sorted(package.rglob("*.py")):
        yield from _in_code(ast.parse(path.read_text(encoding="utf-8")), _name(package, path))
    for path in sorted([*package.rglob("*.html"), *package.joinpath("templates").rglob("*.txt")]):
        yield from texts_of_template(path.read_text(encoding="utf-8"), _name(package, path))


def texts_of_template(source: str, path: str) -> Iterator[Marked]:
    """Yield the marked texts of a template."""
    for code in _calls(templatize(source, origin=path)):
        yield from _in_code(ast.parse(code), path)


def catalogue_of_texts(texts: Sequence[Marked]) -> Catalog:
    """Return the texts as a catalogue without translations."""
    catalogue = Catalog(charset="utf-8")
    for each in texts:
        given = each.text if each.plural is None else (each.text, each.plural)
        catalogue.add(given, locations=[(each.path, 0)], context=each.context)
    return catalogue


def _name(package: Path, path: Path) -> str:
    return path.relative_to(package.parent).as_posix()


def _in_code(tree: ast.AST, path: str) -> Iterator[Marked]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name not in _MARKS:
            continue
        context, text, plural = (None if at is None else _literal(node.args, at) for at in _MARKS[name])
        if text:  # a call with a variable looks up what is marked elsewhere
            yield Marked(context, text, plural, path)


def _literal(arguments: Sequence[ast.expr], at: int) -> str | None:
    given = arguments[at] if at < len(arguments) else None
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None


def _calls(text: str) -> Iterator[str]:
    """Yield the calls in a template that `templatize` has made code, each as one expression."""
    names = sorted(_MARKS, key=len, reverse=True)
    at = 0
    while True:
        starts = [(text.find(f"{name}(", at), name) for name in names]
        found = [(start, -len(name)) for start, name in starts if start >= 0]
        if not found:
            return
        begin, length = min(found)
        end = _end_of_call(text, begin - length)
        yield text[begin:end]
        at = end


def _end_of_call(text: str, opening: int) -> int:
    """Return the position behind the bracket that closes the one at `opening`; brackets in literals do not count."""
    for end in (each + 1 for each, sign in enumerate(text[opening:], opening) if sign == ")"):
        try:
            ast.parse("f" + text[opening:end])
        except SyntaxError:
            continue
        return end
    raise ValueError(f"a marked text has no end: {text[opening : opening + 80]!r}")
