"""The catalogues of translations: complete, up to date with the code, compiled, and with the places for values."""

from __future__ import annotations

import gettext
import re
from io import BytesIO
from string import Formatter
from typing import Final

import pytest
from babel.messages.catalog import Message
from django.template.base import Lexer
from django.utils import translation
from django.utils.translation import gettext as translated

from tests.tools import catalogue

LANGUAGES: Final = sorted(each.name for each in catalogue.LOCALE.iterdir() if each.is_dir())
_PERCENT: Final = re.compile(r"%\((\w+)\)[sd]")
TO_UPDATE: Final = "run: uv run python -m tests.tools.catalogue, translate what it lists, and run it again"


def key(message: Message) -> tuple[str | None, tuple[str, ...]]:
    return message.context, catalogue.texts_of(message)


def places(text: str) -> set[str]:
    """The names of the values in a text, in braces or behind a percent sign."""
    in_braces = {name for _, name, _, _ in Formatter().parse(text) if name} if is_of_braces(text) else set()
    return in_braces | set(_PERCENT.findall(text))


def is_of_braces(text: str) -> bool:
    return re.fullmatch(r"(?:[^{}]|\{\w+\})*", text) is not None


def messages(language: str) -> list[Message]:
    return [each for each in catalogue.read(language) if each.id]


def test_german_is_there() -> None:
    assert "de" in LANGUAGES


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalogue_has_every_marked_text_and_no_other(language: str) -> None:
    marked = {
        (each.context, (each.text, each.plural) if each.plural else (each.text,)) for each in catalogue.marked_texts()
    }
    known = {key(each) for each in messages(language)}
    assert {"missing": marked - known, "gone": known - marked} == {"missing": set(), "gone": set()}, TO_UPDATE


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated(language: str) -> None:
    left = [each.id for each in messages(language) if each.fuzzy or not all(catalogue.translations_of(each))]
    assert left == [], TO_UPDATE
    assert not catalogue.read(language).obsolete


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalogue_names_its_language(language: str) -> None:
    [named] = [each.string for each in messages(language) if each.context == "code of the language of these texts"]
    assert named == language.lower().replace("_", "-")


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_have_the_places_of_their_texts(language: str) -> None:
    wrong = [
        (catalogue.texts_of(each)[-1], told)
        for each in messages(language)
        for told in catalogue.translations_of(each)
        if not fits(each, told)
    ]
    assert wrong == []


def fits(message: Message, told: str) -> bool:
    """Return whether a translation has the values, the elements and the spaces around of its text.

    One form may leave out values.
    """
    *_, text = catalogue.texts_of(message)
    if message.pluralizable:
        return places(told) <= {name for each in catalogue.texts_of(message) for name in places(each)}
    ends = [(each[:1].isspace(), each[-1:].isspace()) for each in (text, told)]
    elements = [re.findall("<[^>]*>", each) for each in (text, told)]
    return places(told) == places(text) and ends[0] == ends[1] and elements[0] == elements[1]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalogue_is_compiled(language: str) -> None:
    def told(content: bytes) -> dict[object, str]:
        found = gettext.GNUTranslations(BytesIO(content))
        assert found.charset() == "utf-8"
        told: dict[object, str] = dict(found._catalog)  # type: ignore[attr-defined]
        return {text: each for text, each in told.items() if text != ""}  # without the header: it names Babel's version

    assert told(catalogue.mo_path(language).read_bytes()) == told(catalogue.compiled(catalogue.read(language))), (
        TO_UPDATE
    )


def test_what_is_marked_in_a_template_is_found() -> None:
    source = (
        '{% load i18n %}{% translate "One (of) \'them\'" %}{{ x|default:_("Two") }}'
        "{% blocktranslate count n=n with a=b %}{{ n }} {{ a }} run{% plural %}{{ n }} {{ a }} runs{% endblocktranslate %}"
    )
    assert Lexer(source).tokenize()
    found = list(catalogue.texts_of_template(source, "page.html"))
    assert [(each.text, each.plural) for each in found] == [
        ("One (of) 'them'", None),
        ("Two", None),
        ("%(n)s %(a)s run", "%(n)s %(a)s runs"),
    ]


def test_the_admin_speaks_german_if_it_is_asked_to() -> None:
    with translation.override("de"):
        assert translated("Causes of failed runs") == "Ursachen fehlgeschlagener Läufe"
