"""Divergences in the active language: the text of a `HistoryDivergedError` told once more.

The text is stored in English, as `durable.core.replay_cursor` has made it. A text that does not begin and end so, a
shortened or a redacted one for example, stays as it is; so does a problem that only names values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durable.inspection.wording import kind_in_words

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

MOST: Final = 800  # characters of what does not fit in an explanation: it ends with what to do

_ROOT: Final = "the root"
_ADVICE: Final = (
    "The code has changed since this history was recorded, or does not do the same each time (a clock, dice or a query "
    "between steps). Bring the operation back, mark it as removed with ctx.removed(name, kind), or branch on "
    "ctx.get_version(name, latest)"
)
_PROBLEMS: Final[Mapping[re.Pattern[str], StrPromise]] = {
    re.compile(
        r'the code comes to the (?P<kind>\w+) "(?P<place>.+)", which is not in the history, but the history goes on with '
        r'(?P<others>".+)'
    ): gettext_lazy(
        'the code comes to the %(kind)s "%(place)s", which is not in the history, but the history goes on with %(others)s'
    ),
    re.compile(
        r'the code comes to the (?P<kind>\w+) "(?P<place>.+)", which has not ended, but the history has '
        r'(?P<others>".+) before it'
    ): gettext_lazy(
        'the code comes to the %(kind)s "%(place)s", which has not ended, but the history has %(others)s before it'
    ),
    re.compile(r'the code ended, but the history goes on with (?P<others>".+)'): gettext_lazy(
        "the code ended, but the history goes on with %(others)s"
    ),
    re.compile(
        r'expected a (?P<kind>\w+|try block) at "(?P<place>.+)", found a (?P<found>\w+|try block)'
    ): gettext_lazy('expected a %(kind)s at "%(place)s", found a %(found)s'),
}
_KINDS: Final = frozenset({"kind", "found"})
_MORE: Final = re.compile(r"(?P<places>.+) and (?P<number>\d+) more")


def told_divergence(text: str) -> str:
    """Return the text of the error in the active language; another text as it is."""
    for pattern, template in _PROBLEMS.items():
        found = re.fullmatch(rf"in (?P<scope>.+?): {pattern.pattern}\. {re.escape(_ADVICE)}", text)
        if found is not None:
            values = found.groupdict()
            scope = values.pop("scope")
            problem = str(template) % {name: _told(name, value) for name, value in values.items()}
            where = _("in the root") if scope == _ROOT else _("in %(scope)s") % {"scope": scope}
            return _(
                "%(where)s: %(problem)s. The code has changed since this history was recorded, or does not do the same "
                "each time (a clock, dice or a query between steps). Bring the operation back, mark it as removed with "
                "ctx.removed(name, kind), or branch on ctx.get_version(name, latest)"
            ) % {"where": where, "problem": problem}
    return text


def _told(name: str, value: str) -> str:
    if name in _KINDS:
        return kind_in_words(value)
    more = _MORE.fullmatch(value) if name == "others" else None
    return value if more is None else _("%(places)s and %(number)s more") % more.groupdict()
