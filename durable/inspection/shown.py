"""What its author lets a run show: its status, its published values, and the line of text of a step's call. Redacted.

The project's hook gets a status as the field "status", a step's line as "summary", and a value as the output of its
entry. Surfaces show values to users who may see payloads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from django.utils.translation import gettext as _

from durable import runtime
from durable.core.entry_shapes import readable
from durable.core.location import value_name
from durable.core.places import Place
from durable.core.records import EntryKind, Status
from durable.core.results import Markdown
from durable.core.steps import SUMMARY
from durable.inspection.counting import fitting
from durable.inspection.humanize import decimal, printable, thousands, until
from durable.inspection.payloads import payload, redacted
from durable.inspection.reading import read_alias
from durable.models import Entry, Run, RunStatus
from durable.models.history import EntryQuerySet
from durable.models.rows import ByteLength


def summary_of(workflow: str, data: Any) -> str:
    """Return the line of text in the data of a step's entry; "" if there is none."""
    text = data.get(SUMMARY) if isinstance(data, dict) else None
    return line_of(workflow, text) if isinstance(text, str) else ""


def line_of(workflow: str, summary: str) -> str:
    """Return the line of text of a step's call, as it may be shown."""
    return printable(str(redacted(workflow, "summary", summary))) if summary else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStatus(Status):
    """The status of a run for its readers, its text redacted. `revision` differs for each new status."""

    revision: str

    @property
    def numbers(self) -> str:
        """How much is done, in words: "3 of 7", "300"; "" if it is not said."""
        if self.done is None:
            return ""
        if self.of is None:
            return _number(self.done)
        return _("%(done)s of %(total)s") % {"done": _number(self.done), "total": _number(self.of)}

    @property
    def words(self) -> str:
        """The text and the numbers: "waiting for the courier (3 of 7)"."""
        if not self.text or not self.numbers:
            return self.text or self.numbers
        return f"{self.text} ({self.numbers})"

    def expected(self, now: datetime) -> str:
        """When the run expects to be done, in words; "" if it does not say."""
        return "" if self.eta is None else until(self.eta, now)


def _number(value: float) -> str:
    return thousands(int(value)) if float(value).is_integer() else decimal(value)


def _shown(workflow: str, row: RunStatus) -> ShownStatus:
    return shown_status(workflow, row.status, f"{row.fence}-{row.number}")


def shown_status(workflow: str, status: Status, revision: str = "") -> ShownStatus:
    text = printable(str(redacted(workflow, "status", status.text))) if status.text else ""
    return ShownStatus(**{**asdict(status), "text": text}, revision=revision)


def status_of(run: Run) -> ShownStatus | None:
    """Return the run's status, None without one; one query, unless the run was read with its `shown`."""
    row = getattr(run, "shown", None)
    return None if row is None else _shown(run.workflow, row)


def statuses_of(runs: Sequence[Run]) -> dict[str, ShownStatus]:
    """Return the statuses of those of the runs that have one, by id; one statement, none for runs read with them."""
    others = {run.id: run.workflow for run in runs if not Run.shown.is_cached(run)}
    found = {run.id: status for run in runs if run.id not in others and (status := status_of(run)) is not None}
    if others:
        rows = RunStatus.objects.using(read_alias()).filter(run__in=list(others)).order_by()
        found |= {row.run_id: _shown(others[row.run_id], row) for row in rows}
    return found


def status_data(run: Run) -> dict[str, Any] | None:
    status = status_of(run)
    if status is None:
        return None
    return {
        "text": status.text,
        "done": status.done,
        "of": status.of,
        "eta": None if status.eta is None else status.eta.isoformat(),
        "at": status.at.isoformat(),
    }


MOST_VALUES: Final = 50
_MOST_BYTES: Final = 256 * 1024  # of all values of a run together, as recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownValue:
    """The newest published value of a name, as JSON data.

    `form` is how to show it: "number", "text", "markdown", "table" or "json". With `is_left_out` the value was not
    read, because it and those before it are too large together.
    """

    name: str
    location: str
    form: str
    value: Any
    at: datetime
    is_left_out: bool = False


def published_of(run: Run) -> EntryQuerySet:
    """Return the entries of the run's published values, in order."""
    return Entry.objects.using(read_alias()).published(run.id)


def values_of(run: Run) -> list[ShownValue]:
    """Return the newest published value of each name, the last `MOST_VALUES` names; three statements, one for none."""
    entries = Entry.objects.using(read_alias())
    shown = entries.newest_published(run.id)[-MOST_VALUES:]
    if not shown:
        return []
    rows = entries.published(run.id).filter(ordinal__in=shown).with_metadata().annotate(size=ByteLength("output"))
    columns = ("ordinal", "pk", "location", "size", "data", "metadata__completed_at")
    newest = {ordinal: row for ordinal, *row in rows.values_list(*columns)}
    found = [newest[each] for each in shown if each in newest]
    chosen, _size = fitting(((row[0], row[2] or 0) for row in found), _MOST_BYTES)
    read = dict(entries.filter(pk__in=chosen).values_list("pk", "output"))
    return [_value(run, value_name(row[1]), row, read) for row in found]


def _markdown(workflow: str, field: str, text: str | None, place: Place) -> str | None:
    """Return the text of recorded Markdown, redacted; None if it is none for this code or for the hook."""
    try:
        value = None if text is None else runtime.current().decode(text, place)
    except Exception:  # noqa: BLE001  # told by `payload`
        return None
    shown = redacted(workflow, field, value.text) if isinstance(value, Markdown) else None
    return shown if isinstance(shown, str) else None


def _value(run: Run, name: str, row: Sequence[Any], read: Mapping[int, str | None]) -> ShownValue:
    key, location, _size, data, at = row
    form = str(readable(EntryKind.PUBLISH, data)["as"])
    field, text, place = f"output:{location}", read.get(key), Place(run.id, "output", location)
    value = _markdown(run.workflow, field, text, place) if form == "markdown" else None
    if value is None:
        form = "json" if form == "markdown" else form
        value = payload(run.workflow, field, text, place)
    if form == "table" and not (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
        form = "json"
    left_out = key not in read
    return ShownValue(name=printable(name), location=location, form=form, value=value, at=at, is_left_out=left_out)
