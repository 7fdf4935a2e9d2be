"""Rules in words: "At 02:30", "Every 6 hours"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from cron_descriptor import ExpressionDescriptor, Options

from durable.schedules.rules import Every, Rule

_LOCALES: Final = {"de": "de_DE", "es": "es_ES", "fr": "fr_FR", "it": "it_IT", "nl": "nl_NL"}


def in_words(rules: Sequence[Rule], language: str = "en") -> str:
    """Return the rules in words, those of a list separated by semicolons. `language` is one of Django's codes."""
    locale = _LOCALES.get(language.partition("-")[0], "en_US")
    return "; ".join(_words(each, locale) for each in rules)


@lru_cache(maxsize=4_096)
def _words(rule: Rule, locale: str) -> str:
    if isinstance(rule, Every):
        return rule.text[:1].upper() + rule.text[1:]
    try:
        how = Options(use_24hour_time_format=True, locale_code=locale)
        return str(ExpressionDescriptor(rule.expression, how).get_description())
    except Exception:  # noqa: BLE001  # words are a help only: a rule that the library cannot say is shown as it is
        return rule.text
