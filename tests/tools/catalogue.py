"""Bring the catalogues of translations up to date: `uv run python -m tests.tools.catalogue`.

Adds the texts that the code has marked since, with an empty translation, takes out those that are gone, and compiles
each catalogue. Prints what is left to translate. With `--add fr` it begins a catalogue for another language.

Modules are parsed, and templates go through Django's own `templatize`. So nothing depends on the tools of GNU gettext,
which not every machine has.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Final

import django
from babel.messages.catalog import Catalog, Message
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

PACKAGE: Final = Path(__file__).resolve().parents[2] / "durable"

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


LOCALE: Final = PACKAGE / "locale"
_NO_DATE: Final = datetime(2026, 1, 1, tzinfo=UTC)  # a catalogue that has not changed is not compiled differently
_WIDTH: Final = 100  # columns of a line
#: Without dates: a catalogue that has not changed is not written differently.
_HEADER: Final = """\
msgid ""
msgstr ""
"Language: {language}\\n"
"Plural-Forms: {plurals}\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=utf-8\\n"
"Content-Transfer-Encoding: 8bit\\n"

"""


def po_path(language: str) -> Path:
    """Return the file with the translations."""
    return LOCALE / language / "LC_MESSAGES" / "django.po"


def mo_path(language: str) -> Path:
    """Return the file that Django reads."""
    return po_path(language).with_suffix(".mo")


def read(language: str) -> Catalog:
    """Return the catalogue of the language."""
    with po_path(language).open("rb") as file:
        return read_po(file, locale=language)


def compiled(catalogue: Catalog) -> bytes:
    """Return what Django reads of the catalogue."""
    catalogue.creation_date = catalogue.revision_date = _NO_DATE
    file = BytesIO()
    write_mo(file, catalogue)
    return file.getvalue()


def bring_up_to_date(language: str) -> list[str]:
    """Write the catalogue with the texts that are marked now, and return those without a translation."""
    path = po_path(language)
    known = read(language) if path.exists() else Catalog(locale=language, project="durable", charset="utf-8")
    comments = _comments(path)
    known.update(catalogue_of_texts(list(marked_texts())), no_fuzzy_matching=True)
    known.obsolete.clear()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(f"{comments}{_HEADER.format(language=language, plurals=known.plural_forms)}".encode())
        write_po(file, known, width=_WIDTH, include_lineno=False, omit_header=True)
    mo_path(language).write_bytes(compiled(read(language)))
    return [texts_of(each)[0] for each in known if each.id and not all(translations_of(each))]


def _comments(path: Path) -> str:
    """Return the comments at the head of the file: the glossary of a language."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    head = lines[: next((number for number, line in enumerate(lines) if not line.startswith("#")), 0)]
    return "".join(head)


def texts_of(message: Message) -> tuple[str, ...]:
    """Return the text of a message, and its plural if it has one."""
    return (message.id,) if isinstance(message.id, str) else tuple(message.id)


def translations_of(message: Message) -> tuple[str, ...]:
    """Return the translations of a message: one for each form of the language."""
    if isinstance(message.string, list | tuple):
        return tuple(message.string)
    return (message.string or "",)


def main(arguments: Sequence[str]) -> None:
    """Bring each catalogue up to date, and those of `--add`."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()  # templates are parsed with the project's libraries
    added = arguments[1:] if arguments[:1] == ["--add"] else []
    for language in sorted({*added, *(each.name for each in LOCALE.iterdir() if each.is_dir())}):
        untranslated = bring_up_to_date(language)
        sys.stdout.write(f"{language}: {len(untranslated)} to translate\n")
        for text in untranslated:
            sys.stdout.write(f"  {text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
