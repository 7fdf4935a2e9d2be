"""A run's key, rank, tags, time limits and what it is about, given at its start, for every surface."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db.models import BigIntegerField, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.lookups import IsNull
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.core.limits.ranks import UNTAGGED, Ranking
from durable.core.new_runs import Subject
from durable.core.records import ENDED, HoldKind, KeyRecord, RunState, is_leased
from durable.core.tags import HASHED, MAX_TAGS, check_tag_name, tag_text
from durable.core.time_limits import RunLimits
from durable.core.words import Sentence, gettext_noop
from durable.inspection.counting import Count, sample_rows
from durable.inspection.humanize import relative, span
from durable.inspection.payloads import jsonable, redacted
from durable.inspection.queues import find_hold
from durable.inspection.reading import read_alias
from durable.models import Lane, Run, RunRank, RunSubject, RunTag
from durable.models.run import RunQuerySet
from durable.models.subjects import model_of, read_subject
from durable.tag_hashes import sought


def carried_of(run: Run) -> Any:
    """Return what travels with the run as operators may see it, by the names of the carriers; None for nothing.

    Show it to users with `view_payload`.
    """
    return None if run.carried is None else jsonable(redacted(run.workflow, "carried", json.loads(run.carried)))


def carried_lines(run: Run) -> list[tuple[str, str]]:
    """Return the same as a name and a text for each carrier; the name is "" if a hook has replaced them all."""
    found = carried_of(run)
    if found is None:
        return []
    values = found if isinstance(found, dict) else {"": found}
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in values.items()
    ]


def key_of(run: Run) -> KeyRecord | None:
    """Return the key with which the run was started, None without one; one query, unless it was read with its `key`."""
    row = getattr(run, "key", None)
    return None if row is None else row.record


def key_note(key: KeyRecord, now: datetime) -> str:
    """Describe a key: who has it, and how often a debounce has moved the run."""
    held = _("held by this run") if key.is_open else _("free again")
    if key.follows is not None:
        held = _("%(held)s; the run began with what the one before it had not received") % {"held": held}
    if not key.moves or key.moved_at is None:
        return held
    moves = ngettext(
        "%(held)s; %(number)d later start was merged into this one, %(when)s",
        "%(held)s; %(number)d later starts were merged into this one, the last %(when)s",
        key.moves,
    )
    return moves % {"held": held, "number": key.moves, "when": relative(key.moved_at, now)}


_CAP: Final = 1_000  # the most earlier runs to count
_LANES: Final = 20  # head starts of a queue, the greatest first


def rank_of(run: Run) -> Ranking | None:
    """Return the rank given at the run's start, or None. One query, only for a run with a rank."""
    if run.head_start is None:
        return None
    row = getattr(run, "ranking", None)
    return None if row is None else row.record


def rank_data(run: Run) -> dict[str, Any]:
    """Return the rank as data; `head_start` is in seconds, and values that were not given are None."""
    ranking = rank_of(run) or Ranking()
    return {
        "priority": ranking.priority or None,
        "head_start": ranking.head_start if ranking.priority else None,
        "share": ranking.share or None,
        "weight": ranking.weight if ranking.share else None,
    }


def rank_words(ranking: Ranking) -> str:
    """Return the priority in words: "high, a head start of 10 m"; "" without one."""
    if not ranking.priority:
        return ""
    told = {"name": ranking.priority, "span": span(abs(ranking.head_start))}
    if not ranking.head_start:
        return _("%(name)s, no head start") % told
    if ranking.head_start > 0:
        return _("%(name)s, a head start of %(span)s") % told
    return _("%(name)s, put back by %(span)s") % told


def share_words(ranking: Ranking) -> str:
    """Return the share in words: "tenant-7", or "tenant-7, weight 2"; "" without one."""
    if not ranking.share or ranking.weight == 1:
        return ranking.share
    return _("%(share)s, weight %(weight)s") % {"share": ranking.share, "weight": f"{ranking.weight:g}"}


def waits_for_worker(run: Run, now: datetime) -> bool:
    return run.wake_at is not None and run.wake_at <= now and not is_leased(run, now) and run.state != RunState.PAUSED


def rank_note(run: Run, now: datetime) -> str:
    """Say which runs come before a due run that waits for a worker, without a full stop.

    "" for any other run, in a paused queue, and in one whose runs have neither priorities nor shares. Counts at most
    1,000. One query, and four more where runs of the queue have had priorities or shares.
    """
    if not waits_for_worker(run, now):
        return ""
    lanes = Lane.objects.using(read_alias()).filter(queue=run.queue).order_by("-head_start")
    head_starts = list(lanes.values_list("head_start", flat=True)[:_LANES])
    if not head_starts or find_hold(HoldKind.QUEUE, run.queue) is not None:
        return ""
    ranking = rank_of(run)
    before = _before(run, head_starts, now)
    if ranking is None or not ranking.share:
        if not before.all:
            return ""
        return _("Before it come runs with a head start, or whose shares have their turns: %(number)s") % {
            "number": before.all
        }
    told = {"share": ranking.share, "number": before.all}
    if not before.all:
        return _("Its turn in share %(share)s is the next") % told
    if before.is_capped:  # the counted runs may all be of other shares
        return _("It waits for its turn in share %(share)s: before it come %(number)s") % told
    told["same"] = before.of(ranking.share)
    return _("It waits for its turn in share %(share)s: before it come %(number)s, of its own share %(same)s") % told


class _Before(NamedTuple):
    """The runs that are claimed before a run; with `is_capped` there are more."""

    ids: list[str]
    is_capped: bool

    @property
    def all(self) -> Count:
        return Count(number=len(self.ids), is_capped=self.is_capped)

    def of(self, share: str) -> Count:
        rows = RunRank.objects.using(read_alias()).filter(run_id__in=self.ids, share=share)
        return Count(number=rows.count())


def _before(run: Run, head_starts: list[int], now: datetime) -> _Before:
    """Return the due runs with a rank that are claimed before this one."""
    assert run.wake_at is not None
    own = min(run.start_tag or run.wake_at, UNTAGGED - timedelta(days=2)) - timedelta(seconds=run.head_start or 0)
    parts: list[RunQuerySet] = []
    for head_start in head_starts:
        until = own + timedelta(seconds=head_start)
        lane = Run.objects.using(read_alias()).filter(queue=run.queue, head_start=head_start, wake_at__lte=now)
        lane = lane.exclude(state=RunState.PAUSED.value).filter(Q(lease_expires_at=None) | Q(lease_expires_at__lte=now))
        in_order = lane.order_by("start_tag", "wake_at", "id")
        parts += [in_order.filter(start_tag__lt=until), in_order.filter(start_tag=None, wake_at__lt=until)]
    found = [run_id for rows in sample_rows(parts, ["id"], _CAP + 1) for (run_id,) in rows]
    return _Before([each for each in found if each != run.id][:_CAP], len(found) > _CAP)


def limits_of(run: Run) -> RunLimits | None:
    """Return the run's limits, None without any; one query, unless the run was read with its `limit`."""
    row = getattr(run, "limit", None)
    return None if row is None else row.record


def limits_note(run: Run, now: datetime) -> str:
    """Say what the limits mean for an open run, without a full stop; "" for nothing.

    "" too for a run that was read without its `limit`: no query is made.
    """
    if run.state in ENDED or run.state == RunState.ROLLING_BACK or not Run.limit.is_cached(run):
        return ""
    limits = limits_of(run)
    if limits is None:
        return ""
    if limits.in_doubt is not None:
        return _("Its database went back in time, so that its next steps count as unknown until one was not done")
    if limits.deadline is not None and limits.deadline <= now:
        return _("Its deadline was %(when)s: it fails as soon as it goes on") % {"when": relative(limits.deadline, now)}
    if limits.deadline is not None:
        return _("Its deadline is %(when)s") % {"when": relative(limits.deadline, now)}
    return _("Its work limit: %(used)s") % {"used": work_words(limits)}


def work_words(limits: RunLimits) -> str:
    """Say how much of the work limit is used: "12 m of 1 h"; "" without a limit."""
    if limits.work_limit is None:
        return ""
    return _("%(used)s of %(limit)s") % {"used": span(limits.worked), "limit": span(limits.work_limit)}


#: The prefix of a tag's field name for the redaction hook, and of a tag in a search.
TAG: Final = "tag:"


def shown_value(workflow: str, name: str, value: str) -> str | None:
    """Return the displayed value of a tag; None for a hashed one."""
    if value.startswith(HASHED):
        return None
    shown = redacted(workflow, f"{TAG}{name}", value)
    return "" if shown is None else str(shown)


def shown_tags(workflow: str, tags: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the displayed values of an entry's tags; None for hashed and missing ones."""
    return {name: None if value is None else shown_value(workflow, name, value) for name, value in tags.items()}


def tags_note(workflow: str, data: Mapping[str, Any]) -> str:
    """Say which tags an entry has set: "stage=paid, sum=9.5"."""
    shown = shown_tags(workflow, data.get("tags", {}))
    return ", ".join(f"{name}={_('hashed') if value is None else value}" for name, value in shown.items())


MOST_NAMES: Final = 20  # names of tags to search for a value
_NOT_IN_ADDRESSES: Final = re.compile("[\x00\ud800-\udfff]")  # of UTF-8, and none of a form's text
_WORD: Final = re.compile(r'tag:(?P<name>[^=:\s]+)[=:](?:"(?P<quoted>[^"]+)"|(?P<plain>[^\s"]\S*))(?:\s+|$)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A tag of a run, with its value after the project's redaction hook.

    `is_hashed`: only the hash of the value is stored. Then `value` is "": nobody can read it, but a person who knows it
    can search for it. `is_redacted`: the hook shows another value than the stored one.
    """

    name: str
    value: str
    is_hashed: bool = False
    is_redacted: bool = False

    @property
    def word(self) -> str:
        """The search word that finds the runs with this tag.

        "" if the tag's value is not shown, or if no word can express it.
        """
        return "" if self.is_hashed or self.is_redacted else tag_word(self.name, self.value)


def tag_word(name: str, value: str) -> str:
    """Return the search word for a tag; "" if its value has both quotation marks and spaces, or characters not allowed
    in addresses.
    """
    if _NOT_IN_ADDRESSES.search(value):
        return ""
    if re.fullmatch(r'[^\s"]\S*', value):
        return f"{TAG}{name}={value}"
    return "" if '"' in value else f'{TAG}{name}="{value}"'


def split_tags(text: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Split a search into the tags at its beginning, by name and value, and the rest.

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
    """Parse a tag written as name=value or name:value; names contain neither character.

    Raises ValueError.
    """
    written = re.fullmatch("(?P<name>[^=:]*)[=:](?P<value>.*)", text, re.DOTALL)
    if written is None:
        raise ValueError(Sentence(gettext_noop("write a tag as name=value")))
    [tag] = checked_tags([(written["name"], written["value"])])
    return tag


def checked_tags(tags: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return these tags without duplicates.

    Raises ValueError for an invalid name or value, for two values of one tag, and for more tags than a run can have.
    """
    found = tuple(dict.fromkeys((check_tag_name(name), tag_text(name, value)) for name, value in tags))
    [(name, number)] = Counter(name for name, _ in found).most_common(1) or [("", 0)]
    if number > 1:
        raise ValueError(Sentence(gettext_noop('a run has one value of the tag "{name}": give one'), name=name))
    if len(found) > MAX_TAGS:  # each is a join
        raise ValueError(Sentence(gettext_noop("a run has at most {number} tags: search for no more"), number=MAX_TAGS))
    return found


def names_of_tags() -> list[str]:
    """Return the names of tags that runs have, at most `MOST_NAMES`; a statement for each, along the index."""
    found: list[str] = []
    rows = RunTag.objects.using(read_alias()).order_by("name").values_list("name", flat=True)
    while len(found) < MOST_NAMES:
        name = (rows.filter(name__gt=found[-1]) if found else rows).first()
        if name is None:
            break
        found.append(name)
    return found


def tag_with_value(value: str) -> tuple[str, str] | None:
    """Return a tag with this value in any run, by name and value, or None."""
    tags = RunTag.objects.using(read_alias())
    for name in names_of_tags():
        try:
            if tags.filter(name=name, value__in=sought(name, value)).exists():
                return name, tag_text(name, value)
        except ValueError:  # no tag has such a value
            return None
    return None


def has_tag(name: str, value: str) -> Q:
    """Return the condition for runs with the tag; it is looked up for each examined run."""
    return _is_in(rows_with_tag(name, value))


def rows_with_tag(name: str, value: str) -> QuerySet[RunTag]:
    """Return the rows of the tag, one for each run that has it. Raises TypeError and ValueError for an invalid one."""
    return RunTag.objects.using(read_alias()).filter(name=name, value__in=sought(name, value))


def _is_in(rows: QuerySet[Any]) -> Q:
    """Return the condition for runs with one of these rows of a side table.

    A subquery for each examined run: PostgreSQL might read all rows for an EXISTS, and then sort the runs.
    """
    return Q(IsNull(Subquery(rows.filter(run=OuterRef("pk")).values("pk")[:1]), rhs=False))


def tags_of(runs: Sequence[Run]) -> dict[str, list[Tag]]:
    """Return the tags of each of these runs, by the names of the tags; one statement."""
    workflows = {run.id: run.workflow for run in runs}
    found: dict[str, list[Tag]] = {run_id: [] for run_id in workflows}
    rows = RunTag.objects.using(read_alias()).filter(run__in=list(found)).order_by("run_id", "name")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """An instance that a run is about: the label of its model, its primary key as text, and both in words.

    `word` is the form in which filters take it: "shop.order:42".
    """

    model: str
    key: str
    words: str

    @property
    def word(self) -> str:
        """The text that a filter of runs takes."""
        return f"{self.model}:{self.key}"


def about_of(runs: Sequence[Run]) -> dict[str, list[About]]:
    """Return what each of these runs is about, in the order in which its start gave it; one statement.

    The instances are not looked up.
    """
    found: dict[str, list[About]] = {run.id: [] for run in runs}
    rows = RunSubject.objects.using(read_alias()).filter(run__in=list(found)).order_by("run_id", "id")
    for run_id, model, key in rows.values_list("run_id", "model", "object_pk"):
        found[run_id].append(_about(model, key))
    return found


def tags_and_about_of(runs: Sequence[Run]) -> tuple[dict[str, list[Tag]], dict[str, list[About]]]:
    """Return what `tags_of` and `about_of` return, read in one statement."""
    workflows = {run.id: run.workflow for run in runs}
    tags: dict[str, list[Tag]] = {run_id: [] for run_id in workflows}
    about: dict[str, list[About]] = {run_id: [] for run_id in workflows}
    of_tags = RunTag.objects.using(read_alias()).filter(run__in=list(workflows)).order_by()
    of_subjects = RunSubject.objects.using(read_alias()).filter(run__in=list(workflows)).order_by()
    rows = (
        of_tags.annotate(position=Value(0, output_field=BigIntegerField()))
        .values_list("run_id", "position", "name", "value")
        .union(of_subjects.values_list("run_id", "id", "model", "object_pk"), all=True)
    )
    for run_id, position, name, value in sorted(rows):
        if position == 0:
            tags[run_id].append(_tag(workflows[run_id], name, value))
        else:
            about[run_id].append(_about(name, value))
    return tags, about


def _about(model: str, key: str) -> About:
    """Return the instance, in words "order 42"; of a model that the project no longer has "shop.order 42"."""
    found = model_of(model)
    return About(model=model, key=key, words=f"{model if found is None else found._meta.verbose_name} {key}")


def is_about(text: str) -> Q:
    """Return the condition for runs about this, written as "shop.order:42"; it is looked up for each examined run."""
    return _is_in(rows_about(read_subject(text)))


def is_known_model(label: str) -> bool:
    """Return whether the project has the model, or a run is about an instance of one that it had."""
    rows = RunSubject.objects.using(read_alias()).filter(model=label.lower())
    return model_of(label) is not None or rows.exists()


def rows_about(subject: Subject) -> QuerySet[RunSubject]:
    """Return the rows of what runs are about, one for each run about this."""
    return RunSubject.objects.using(read_alias()).filter(model=subject.model, object_pk=subject.key)
