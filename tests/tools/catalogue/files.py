"""The files of a catalogue: read, brought up to date with the marked texts, written, compiled."""

from __future__ import annotations

from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Final

from babel.messages.catalog import Catalog, Message
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from tests.tools.catalogue.texts import PACKAGE, catalogue_of_texts, marked_texts

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
