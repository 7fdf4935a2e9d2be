"""The overview: what needs a person, runs by state, charts of ended runs, queues and workers.

Each cause of failed runs and each finding is a row with its number, its list and its verbs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from durable.admin import access, charts, pages
from durable.admin.charts import ended_charts
from durable.admin.pages import AdminPages
from durable.admin.text import as_key, url_maker
from durable.inspection.causes import MOST, CauseSummary, FailedRun, causes_and_lines, failed_runs
from durable.inspection.explanation import misfits_of_failed, replay_check
from durable.inspection.findings import Finding, collect_findings, how_it_failed
from durable.inspection.humanize import thousands
from durable.inspection.reading import read_alias
from durable.inspection.runs import RunCriteria
from durable.inspection.wording import cause_in_words
from durable.inspection.workers import Workers, worker_overview
from durable.inspection.workflows import STATE_CAP, count_everyone
from durable.models import Run
from durable.operations.audit import PERMISSIONS, revision
from durable.operations.verbs import DECISIONS, RUN_VERBS

if TYPE_CHECKING:
    from durable.inspection.causes import CauseLine
    from durable.inspection.counting import Count

#: Kinds of failures without words of their own.
_ORDINARY: Final = frozenset({"exhausted", "failed"})
#: Kinds of failures caused by the code: a recovery with the same build meets them again.
_BY_CODE: Final = frozenset({"diverged", "mistake"})
#: The errors of runs that have failed because of their children.
_OF_CHILDREN: Final = frozenset({"ChildFailedError", "ChildCancelledError", "MapError"})
_MOST_WORKFLOWS: Final = 3  # that a row names


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A link to the confirmation of a verb. `needs` is the permission without which it is not shown."""

    title: str
    url: str
    needs: str = "operate_run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row about something that needs a person.

    `url` leads to what it is about, "" if there is nothing, and `list_url` to its runs, by a link with the text
    `list_title`. `numbers` says how many runs are failed and how many are held, "" if none is held. `says` is text of
    an error's message, for users with `view_payload`; `advice` is for everybody, as is `note`, which an operator has
    written. `is_urgent`: runs stand still until a person acts. `newest` is the id of its
    newest run in the revision `newest_revision`, at `newest_url`, and `recover_newest_url` leads to the confirmation of
    a recovery of that one. `columns` is the path that draws the failures of the last day, "" for none, and `total` is
    their number, `is_sampled` if there were more.
    """

    key: str
    title: str
    url: str
    list_url: str
    count: Count | None
    is_urgent: bool
    list_title: str = ""
    is_new: bool = False
    says: str = ""
    numbers: str = ""
    note: str = ""
    noted_at: datetime | None = None
    noted_by: str = ""
    advice: str = ""
    workflows: str = ""
    since: datetime | None = None
    last_at: datetime | None = None
    columns: str = ""
    total: int = 0
    is_sampled: bool = False
    verbs: Sequence[Verb] = ()
    newest: str = ""
    newest_url: str = ""
    newest_revision: str = ""
    recover_newest_url: str = ""
    command: str = ""
    runs: Sequence[tuple[str, str]] = ()


def rows_of_causes(causes: Sequence[CauseSummary], site: str = "admin", *, is_limited: bool = False) -> list[Row]:
    """Return a row for each cause, the one with the newest failure first.

    `is_limited`: the user sees only some runs, so that no verb is offered for all runs of a cause.
    """
    newest_first = sorted(causes, key=lambda cause: (cause.since is not None, cause.since), reverse=True)
    newest = _newest_of(causes)
    if is_limited:  # the run that repeats it may be hidden
        newest = {key: replace(run, is_repeated=False) for key, run in newest.items()}
    urls = _Urls(site, _without_other_code(newest.values()))
    rows = [_row_of_cause(each, newest.get(each.newest_run), urls) for each in newest_first]
    return [replace(each, verbs=_verbs_on_newest(each, urls)) for each in rows] if is_limited else rows


def lines_of_causes(causes: Sequence[CauseLine], site: str = "admin") -> list[Row]:
    """Return a short row for each further cause: its title, its number and its verb."""
    newest = _newest_of([each for each in causes if each.count.number == 1])
    urls = _Urls(site, _without_other_code(newest.values()))
    return [_line_of_cause(each, newest.get(each.newest_run), urls) for each in causes]


def _without_other_code(newest: Iterable[FailedRun]) -> set[str]:
    """Return the runs that the code has stopped and for which no worker has another build."""
    return misfits_of_failed([each.id for each in newest if how_it_failed(each)[0] in _BY_CODE], timezone.now())


def _newest_of(causes: Sequence[CauseSummary | CauseLine]) -> dict[str, FailedRun]:
    """Return the newest failed run of each cause, by cause; one statement, none without causes."""
    ids = [each.newest_run for each in causes]
    if not ids:
        return {}
    runs = Run.objects.using(read_alias()).filter(pk__in=ids)
    return {run.id: run for run in failed_runs(runs, with_repeated=True)}


def rows_of_findings(findings: Sequence[Finding], site: str = "admin", *, with_children: bool = False) -> list[Row]:
    """Return a row for each finding, the urgent ones first. `with_children`: some runs are children."""
    urgent_first = sorted(findings, key=lambda finding: not finding.is_urgent)
    return [_row_of_finding(each, site, with_children=with_children) for each in urgent_first]


def title_of(cause: CauseSummary) -> str:
    """Return the cause in a few words: where the runs failed and with which error."""
    return cause_in_words(cause.place, cause.error_type)


def headline(rows: Sequence[Row], *, further: int = 0, has_more: bool = False) -> str:
    """Return the sentence that says what needs a person.

    `further` is the number of causes that have no row, `has_more` says that there are more than these.
    """
    urgent = [row for row in rows if row.is_urgent]
    causes = [row for row in urgent if row.columns]
    others = len(urgent) - len(causes)
    if not urgent:
        return _("Nothing needs a person")
    if not causes and others == 1:
        return urgent[0].title
    if not causes:
        return ngettext("%(number)d finding needs a person", "%(number)d findings need a person", others) % {
            "number": others
        }
    size = len(causes) + further
    number = f"{size}+" if has_more else str(size)
    if others:
        return _("%(causes)s and %(others)s need a person") % {
            "causes": _causes(size, number),
            "others": ngettext("%(number)d other finding", "%(number)d other findings", others) % {"number": others},
        }
    needs = ngettext("%(causes)s needs a person", "%(causes)s need a person", size)
    return needs % {"causes": _causes(size, number)} + ("" if further else _of_which_new(causes))


def _causes(size: int, number: str) -> str:
    return ngettext("%(number)s cause of failure", "%(number)s causes of failure", size) % {"number": number}


def _of_which_new(causes: Sequence[Row]) -> str:
    new = sum(row.is_new for row in causes)
    if not new:
        return ""
    if len(causes) == 1:
        return _(", and it is new")
    if new == len(causes):
        return _(", all of them new")
    return ngettext(", %(number)d of them is new", ", %(number)d of them are new", new) % {"number": new}


#: The conditions that `query_of` writes, and the two that say what a list omits.
_SAID: Final = frozenset(
    {"states", "workflow", "queue", "cause", "worker", "is_diverged", "needs_attention", "is_held", "is_undone"}
    | {"only_roots", "hides_alerts"}
)


def query_of(wanted: RunCriteria, *, with_children: bool = False) -> str:
    """Return the query of the list's address for this filter, which asks for children and alerts where it has to.

    Raises ValueError for a condition that no finding has: without it the address would lead to other runs, and a bulk
    would change them.
    """
    unsaid = [
        each.name for each in fields(wanted) if each.name not in _SAID and getattr(wanted, each.name) != each.default
    ]
    if unsaid:
        raise ValueError(f"the address of a finding does not say {', '.join(unsaid)}: let `query_of` write it")
    given: list[tuple[str, str]] = [("state", state) for state in sorted(wanted.states)]
    texts = {"workflow": wanted.workflow, "queue": wanted.queue, "cause": wanted.cause, "worker": wanted.worker}
    flags = {
        "diverged": wanted.is_diverged,
        "attention": wanted.needs_attention,
        "held": wanted.is_held,
        "undone": wanted.is_undone,
        "children": with_children and replace(wanted, only_roots=True).hides_children,
        "alerts": replace(wanted, hides_alerts=True).leaves_alerts_out,
    }
    given += [(name, text) for name, text in texts.items() if text]
    given += [(name, "1") for name, is_set in flags.items() if is_set]
    return f"?{urlencode(given)}"


def bulk_url(verb: str, query: str, site: str = "admin", options: Mapping[str, int] = MappingProxyType({})) -> str:
    """Return the address of the confirmation of a verb on all runs in the list with this query.

    `options` are proposals for fields of its form.
    """
    return reverse("admin:durable_run_bulk", current_app=site) + _bulk_query(verb, query, options)


def children_url(parent: str, site: str = "admin") -> str:
    """Return the address of the confirmation that recovers a run's failed children."""
    given = {"verb": "recover", "children_of": parent}
    return f"{reverse('admin:durable_run_bulk', current_app=site)}?{urlencode(given)}"


def _bulk_query(verb: str, query: str, options: Mapping[str, int] = MappingProxyType({})) -> str:
    return f"?{urlencode({'verb': verb, 'all': 'on', 'filter': query, **options})}"


class _Urls:
    """The addresses for rows of causes, each looked up once: a page has hundreds of them."""

    def __init__(self, site: str, without_other_code: Set[str]) -> None:
        self.site = site
        self.without_other_code = without_other_code
        self.runs = reverse("admin:durable_run_changelist", current_app=site)
        self.bulk = reverse("admin:durable_run_bulk", current_app=site)
        self.cause = url_maker("cause", site)
        self.run = url_maker("change", site)
        self.recover = url_maker("act", site, "recover")

    def recover_newest(self, cause: CauseSummary | CauseLine) -> str:
        """Return the address of the confirmation that recovers only the newest run; "" if there is no other."""
        is_offered = cause.count.number > 1 and cause.newest_run not in self.without_other_code
        return self.recover(cause.newest_run) if is_offered else ""


def _row_of_cause(cause: CauseSummary, newest: FailedRun | None, urls: _Urls) -> Row:
    query = query_of(RunCriteria(cause=cause.fingerprint))
    is_alone = cause.newest_run in urls.without_other_code
    return Row(
        key=cause.fingerprint,
        title=title_of(cause),
        url=urls.cause(cause.fingerprint),
        list_url=urls.runs + query,
        list_title=_("In the list"),
        count=cause.count,
        is_urgent=cause.count.number > 0 and not cause.is_muted,
        is_new=cause.is_new,
        says=cause.pattern,
        note=cause.note,
        noted_at=cause.noted_at,
        noted_by=cause.noted_by,
        numbers=cause.numbers if cause.held else "",
        advice=_advice_of(newest, is_alone=is_alone),
        workflows=_named(cause.workflows),
        since=cause.since,
        last_at=cause.last_at,
        columns=charts.spark(cause.bars),
        total=sum(cause.bars),
        is_sampled=cause.is_sampled,
        verbs=[_recover(cause, newest, query, urls)] if cause.count and not is_alone else [],
        command=replay_check(newest.workflow) if newest is not None and how_it_failed(newest)[0] in _BY_CODE else "",
        newest=cause.newest_run,
        newest_url=urls.run(cause.newest_run),
        newest_revision="" if newest is None else revision(newest),
        recover_newest_url=urls.recover_newest(cause),
    )


def _line_of_cause(cause: CauseLine, newest: FailedRun | None, urls: _Urls) -> Row:
    query = query_of(RunCriteria(cause=cause.fingerprint))
    return Row(
        key=cause.fingerprint,
        title=cause_in_words(cause.place, cause.error_type),
        url=urls.cause(cause.fingerprint),
        list_url=urls.runs + query,
        count=cause.count,
        is_urgent=True,
        verbs=[] if cause.newest_run in urls.without_other_code else [_recover(cause, newest, query, urls)],
        newest=cause.newest_run,
        recover_newest_url=urls.recover_newest(cause),
    )


def _verbs_on_newest(row: Row, urls: _Urls) -> list[Verb]:
    """Return the verb that recovers the only run of a cause; none for several runs."""
    if row.count is None or row.count.number != 1:
        return []
    return [Verb(title=_title_of_recovery(row.count), url=urls.recover(row.newest))]


def _recover(cause: CauseSummary | CauseLine, newest: FailedRun | None, query: str, urls: _Urls) -> Verb:
    """Return the verb that recovers the runs of a cause.

    For a single run that failed because of its children, it recovers these too.
    """
    if newest is not None and cause.count.number == 1 and newest.error_type in _OF_CHILDREN:
        return Verb(title=_("Recover it and its failed children"), url=children_url(newest.id, urls.site))
    return Verb(title=_title_of_recovery(cause.count), url=urls.bulk + _bulk_query("recover", query))


def _title_of_recovery(count: Count) -> str:
    return ngettext("Recover this run", "Recover these %(count)s", count.number) % {"count": count}


def _advice_of(run: FailedRun | None, *, is_alone: bool) -> str:
    """Return the advice about the newest failed run of a cause before it is recovered."""
    if run is None:
        return ""
    kind, title, advice = how_it_failed(run)
    parts = [] if kind in _ORDINARY else [f"{title}.", advice]
    if is_alone:
        parts.append(_("No worker of its queue has another build yet."))
    if run.is_compensated:
        parts.append(_("The newest run was compensated: a recovery does the undone steps again."))
    if run.is_repeated:
        parts.append(_("Another run repeats the newest one: a recovery does what is left a second time."))
    return " ".join(parts)


def _row_of_finding(finding: Finding, site: str, *, with_children: bool) -> Row:
    list_url, list_title = "", _("In the list")
    if finding.wanted is not None:
        query = query_of(finding.wanted, with_children=with_children)
        list_url = reverse("admin:durable_run_changelist", current_app=site) + query
    url, verbs = _ways_on(finding, site)
    if not list_url:
        list_url, list_title = url, str(_OPENED.get(finding.kind, _("Look")))
    workflows = [f"{workflow} {thousands(number)}" for workflow, number in finding.workflows]
    return Row(
        key=_key_of(finding),
        title=finding.title,
        url=url or list_url,
        list_url=list_url,
        list_title=list_title,
        verbs=verbs,
        count=finding.count if finding.count and (finding.wanted is not None or finding.runs) else None,
        is_urgent=finding.is_urgent,
        advice=finding.advice,
        workflows=_named(workflows),
        since=finding.since,
        command=finding.command,
        runs=finding.runs,
    )


#: The text of the link to the subject of a finding without a list.
_OPENED: Final = {"hung_step": gettext_lazy("Running now"), "bulk_stopped": gettext_lazy("Decide")}


def _ways_on(finding: Finding, site: str) -> tuple[str, list[Verb]]:
    """Return the address of the finding's subject ("" for only its list), and the verbs for it."""

    def url(page: str, *args: str) -> str:
        return reverse(f"admin:durable_run_{page}", args=list(args), current_app=site)

    match finding.kind:
        case "hung_step":
            run, at = as_key(finding.runs[0][0]), f"?{urlencode({'at': finding.location})}"
            return url("running"), [
                Verb(title=_("Stack"), url=f"{url('act', run, 'take_stack')}{at}", needs=PERMISSIONS["take_stack"]),
                Verb(title=_("Abandon"), url=f"{url('act', run, 'abandon')}{at}"),
                Verb(title=_("Interrupt and cancel"), url=f"{url('act', run, 'cancel')}?interrupt=on"),
            ]
        case "bulk_stopped":
            run = as_key(finding.runs[0][0])
            decisions = [Verb(title=str(RUN_VERBS[each].title), url=url("act", run, each)) for each in DECISIONS]
            return url("bulk_result", run), decisions
        case "queue_paused" if finding.wanted is not None:
            key, needs = as_key(finding.wanted.queue), PERMISSIONS["resume_queue"]
            return url("queue", key), [Verb(title=_("Resume"), url=url("queue_hold", key, "resume"), needs=needs)]
        case "starts_held" if finding.wanted is not None:
            key, needs = as_key(finding.wanted.workflow), PERMISSIONS["release_starts"]
            return url("workflow", key), [
                Verb(title=_("Release"), url=url("workflow_hold", key, "release"), needs=needs)
            ]
        case "no_worker" | "unknown_queue" if finding.wanted is not None:
            query = query_of(finding.wanted, with_children=True)
            moves = [Verb(title=_("Move its runs"), url=bulk_url("move", query, site))] if finding.is_urgent else []
            return url("queue", as_key(finding.wanted.queue)), moves
        case "schedule_late" | "tick_refused" | "tick_missed":
            key = as_key(finding.names[0])
            address = url("schedule", key) if len(finding.names) == 1 else url("schedules")
            return address, _verbs_on_schedule(finding, lambda verb: url("schedule_act", key, verb))
        case "slot_free" | "slot_idle" | "line_still" | "line_long" | "slot_kept":
            wakes = [Verb(title=_("Wake"), url=url("act", as_key(finding.runs[0][0]), "wake"))]
            where = url("limit", as_key(finding.names[0])) if len(finding.names) == 1 else url("limits")
            return where, wakes if finding.kind == "slot_idle" else []
        case "commits_lost":
            return url("change", as_key(finding.runs[0][0])), []
        case "database_behind" | "database_held":
            key, needs = as_key(finding.names[0]), PERMISSIONS["restored"]
            decide = Verb(title=_("Decide"), url=url("database_act", key, "restored"), needs=needs)
            return url("database", key), [decide] if finding.is_urgent else []
        case "redis" | "stale_lease" | "old_snapshot" | "transaction_ids" | "retention_late":
            return url("workers"), []
        case _ if finding.wanted is None and finding.runs:
            return url("change", as_key(finding.runs[0][0])), []
    return "", []


def _verbs_on_schedule(finding: Finding, url: Callable[[str], str]) -> list[Verb]:
    """Return the verb that makes up for the first schedule's ticks: for all missed moments, or for the refused one."""
    if finding.kind == "tick_missed" and finding.period is not None:
        since, until = (moment.isoformat() for moment in finding.period)
        address = f"{url('backfill')}?{urlencode({'since': since, 'until': until})}"
        return [Verb(title=_("Backfill"), url=address, needs=PERMISSIONS["backfill_schedule"])]
    if finding.kind == "tick_refused":
        return [Verb(title=_("Run now"), url=url("run"), needs=PERMISSIONS["run_schedule"])]
    return []


def permitted(rows: Sequence[Row], may: Callable[[str], bool]) -> list[Row]:
    """Return the rows, with only the verbs that the user may use."""
    return [replace(row, verbs=[verb for verb in row.verbs if may(verb.needs)]) for row in rows]


def _key_of(finding: Finding) -> str:
    """Return a key that identifies the finding in every language: its kind, and the queue or workflow."""
    wanted = finding.wanted
    return finding.kind if wanted is None else f"{finding.kind} {wanted.queue}{wanted.workflow}"


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_WORKFLOWS
    shown = list(names[:_MOST_WORKFLOWS])
    if more > 0:
        shown.append(ngettext("%(number)d more", "%(number)d more", more) % {"number": more})
    return ", ".join(shown)


CAUSES: Final = 10  # rows that the overview and the admin's index show in full
FEWER: Final = 5  # rows that the index shows in full if there are further ones, which then fit on the first screen
#: The text of a relative time: the browser keeps it up to date, so a different text is not a change of the page.
_FROM_NOW: Final = re.compile(r"(?<=data-durable-relative=\"1\">)[^<]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causes and findings that need a person, and short rows of `further` causes; `has_more`: there are even more."""

    rows: Sequence[Row]
    further: Sequence[Row]
    has_more: bool
    findings: Sequence[Finding]

    @property
    def headline(self) -> str:
        """The sentence that says what needs a person."""
        return headline(self.rows, further=len(self.further), has_more=self.has_more)

    @property
    def number(self) -> str:
        """The number of causes and findings that need a person; "" for none."""
        number = sum(row.is_urgent for row in self.rows) + len(self.further)
        return f"{number}{'+' if self.has_more else ''}" if number else ""

    @property
    def causes(self) -> Sequence[Row]:
        """The rows of causes."""
        return [row for row in self.rows if row.is_urgent and row.newest]

    @property
    def of_index(self) -> tuple[Sequence[Row], Sequence[Row]]:
        """The causes that the admin's index shows in full, and the others."""
        most = FEWER if self.further else CAUSES
        return self.causes[:most], [*self.causes[most:], *self.further]


def show(admin: AdminPages, request: HttpRequest) -> HttpResponse:
    """Show only the overview, for a page that refreshes itself."""
    now = pages.now()
    response = admin.page(request, "_overview", context(request, now))
    etag = pages.etag_of(now, _FROM_NOW.sub("", response.content.decode()))
    return pages.unchanged(etag) if pages.is_known(request, etag) else pages.tagged(response, etag)


def context(request: HttpRequest, now: datetime) -> dict[str, Any]:
    """Return the overview's data at the moment `now`; a constant number of statements."""
    site = getattr(request, "current_app", "admin")
    workers = worker_overview()
    states, has_children = count_everyone()
    everyone = pages.with_everyone(has_children)
    found = _attention(now, workers, site, has_children=has_children)
    return {
        "now": now,
        "headline": found.headline,
        "rows": permitted(found.rows, partial(access.may, request)),
        "further": found.further,
        "has_more": found.has_more,
        "has_urgent_findings": any(each.is_urgent for each in found.findings),
        "paused": {
            each.wanted.queue for each in found.findings if each.kind == "queue_paused" and each.wanted is not None
        },
        "failed": states["failed"],
        "states": [(state, count, f"?{urlencode({'state': state, **everyone})}") for state, count in states.items()],
        "has_children": has_children,
        "count_cap": STATE_CAP,
        "may": {each: access.may(request, each) for each in ("view_payload", "operate_run")},
        "charts": ended_charts(now, site=site, everyone=everyone),
        "workers": workers,
    }


def needs_a_person(now: datetime, site: str) -> Attention:
    """Return what needs a person, for the admin's index."""
    return _attention(now, worker_overview(), site)


def _attention(now: datetime, workers: Workers, site: str, *, has_children: bool = False) -> Attention:
    causes, further = causes_and_lines(now, most=CAUSES, lines=MOST - CAUSES + 1)
    findings = collect_findings(now, workers, failed=[])  # failed runs are shown by cause
    return Attention(
        rows=[*rows_of_causes(causes, site), *rows_of_findings(findings, site, with_children=has_children)],
        further=lines_of_causes(further[: MOST - CAUSES], site),
        has_more=len(further) > MOST - CAUSES,
        findings=findings,
    )
