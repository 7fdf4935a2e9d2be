"""The tags of runs for the surfaces: words of a search, values as they are shown, and the tags of a page of runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from django.db.models import Exists, OuterRef, Q

from durable.conf import conf
from durable.core.tags import MAX_TAGS, check_tag_name, tag_text
from durable.core.words import Sentence, gettext_noop
from durable.inspection.tags import TAG, shown_value
from durable.models import Run, RunTag
from durable.tag_hashes import sought

MOST_NAMES: Final = 20  # names of tags among which a value is looked for
_NOT_IN_ADDRESSES: Final = re.compile("[\x00\ud800-\udfff]")  # of UTF-8, and none of a form's text
_WORD: Final = re.compile(r'tag:(?P<name>[^=:\s]+)[=:](?:"(?P<quoted>[^"]+)"|(?P<plain>[^\s"]\S*))(?:\s+|$)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A tag of a run, with its value as the project's redaction hook shows it.

    `is_hashed`: only the hash of the value is stored. Then `value` is "": nobody can read it, and who knows it can
    search. `is_redacted`: the hook shows another value than the stored one.
    """

    name: str
    value: str
    is_hashed: bool = False
    is_redacted: bool = False

    @property
    def word(self) -> str:
        """The word of a search that finds the runs with this tag.

        It is "" if the tag's value is not shown, or if no word can tell it.
        """
        return "" if self.is_hashed or self.is_redacted else tag_word(self.name, self.value)


def tag_word(name: str, value: str) -> str:
    """Return the word of a search for a tag, "" if the value has quotation marks and spaces, or what no address has."""
    if _NOT_IN_ADDRESSES.search(value):
        return ""
    if re.fullmatch(r'[^\s"]\S*', value):
        return f"{TAG}{name}={value}"
    return "" if '"' in value else f'{TAG}{name}="{value}"'


def split_tags(text: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the tags with which a search begins, by name and value, and the rest of it.

    Raises ValueError for words that begin like a tag and are none.
    """
    found = []
    rest = text.strip()
    while rest.startswith(TAG):
        word = _WORD.match(rest)
        if word is None:
            words = gettext_noop('write a tag as tag:name=value, or tag:name="two words": {text}')
            raise ValueError(Sentence(words, text=repr(rest[:64])))
        found.append((word["name"], word["quoted"] or word["plain"]))
        rest = rest[word.end() :]
    return checked_tags(found), rest


def read_tag(text: str) -> tuple[str, str]:
    """Return the name and the value of a tag that is written as name=value, or as name:value: no name has either.

    Raises ValueError.
    """
    written = re.fullmatch("(?P<name>[^=:]*)[=:](?P<value>.*)", text, re.DOTALL)
    if written is None:
        raise ValueError(Sentence(gettext_noop("write a tag as name=value")))
    [tag] = checked_tags([(written["name"], written["value"])])
    return tag


def checked_tags(tags: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return these tags, each once.

    Raises ValueError for a name or a value that no tag has, and for two values of one tag or more tags than a run has.
    """
    found = tuple(dict.fromkeys((check_tag_name(name), tag_text(name, value)) for name, value in tags))
    [(name, number)] = Counter(name for name, _ in found).most_common(1) or [("", 0)]
    if number > 1:
        raise ValueError(Sentence(gettext_noop('a run has one value of the tag "{name}": give one'), name=name))
    if len(found) > MAX_TAGS:  # each is a join
        raise ValueError(Sentence(gettext_noop("a run has at most {number} tags: search for no more"), number=MAX_TAGS))
    return found


def names_of_tags(most: int = MOST_NAMES) -> list[str]:
    """Return the names of tags that runs have, at most `most` of them; a statement for each, along the index."""
    found: list[str] = []
    rows = RunTag.objects.using(conf.DATABASE).order_by("name").values_list("name", flat=True)
    while len(found) < most:
        name = (rows.filter(name__gt=found[-1]) if found else rows).first()
        if name is None:
            break
        found.append(name)
    return found


def tag_with_value(value: str) -> tuple[str, str] | None:
    """Return the tag that has this value in a run, by name and value; None for none."""
    tags = RunTag.objects.using(conf.DATABASE)
    for name in names_of_tags():
        try:
            if tags.filter(name=name, value__in=sought(name, value)).exists():
                return name, tag_text(name, value)
        except ValueError:  # no tag has such a value
            return None
    return None


def has_tag(name: str, value: str) -> Q:
    """Return the condition for runs with the tag, which is looked up for each examined run."""
    tags = RunTag.objects.filter(run=OuterRef("pk"), name=name, value__in=sought(name, value))
    return Q(Exists(tags))


def tags_of(runs: Sequence[Run]) -> dict[str, list[Tag]]:
    """Return the tags of each of these runs, by the names of the tags; one statement."""
    workflows = {run.id: run.workflow for run in runs}
    found: dict[str, list[Tag]] = {run_id: [] for run_id in workflows}
    rows = RunTag.objects.using(conf.DATABASE).filter(run__in=list(found)).order_by("run_id", "name")
    for run_id, name, value in rows.values_list("run_id", "name", "value"):
        found[run_id].append(_tag(workflows[run_id], name, value))
    return found


def _tag(workflow: str, name: str, value: str) -> Tag:
    shown = shown_value(workflow, name, value)
    if shown is None:
        return Tag(name=name, value="", is_hashed=True)
    return Tag(name=name, value=shown, is_redacted=shown != value)


def tags_data(tags: Iterable[Tag]) -> dict[str, str | None]:
    """Return tags as data: their values by name, None for a hashed one."""
    return {each.name: None if each.is_hashed else each.value for each in tags}
