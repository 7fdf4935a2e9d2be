"""What `ask` asks: every address of the admin and of the interface, with each filter, order and part.

`every_request` raises LookupError for an address of the URLconf, or a filter of the list, that is not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from django.urls import reverse

from durable.admin.filter_form import FilterForm
from durable.admin.list_page import COLUMNS, ORDERS
from durable.admin.run_parts import PART_NAMES
from durable.admin.text import as_key
from durable.inspection.workflows import KINDS
from durable.models import Cause, DatabaseMark, Limit, OperatorAction, QueueMessage, RateLimit, Run, SavedView, Schedule
from durable.models.run import RunQuerySet
from tests.admin.bigdata import LONG
from tests.support.addresses import names_of_admin, names_of_interface
from tests.tools.scale import BULK, DEEP, MAPPER, PARENT

_WORKFLOW: Final = "big.workflow_3"
_FAILED: Final = "run-00500001"
_COMPLETED: Final = "run-00500010"
_KEYED: Final = "run-00500005"
_PLACE: Final = "charge"
_WORKER: Final = "orders-1:4711:0f3a"
#: A value for each field of the filter.
_FILTERS: Final[Mapping[str, list[str]]] = {
    "q": ["run-0001", "run-00500001", "no answer for 39", "a text that none has", "tag:tenant=acme", "tag:tenant=t7"],
    "state": ["failed", "completed", "sleeping", "paused"],
    "workflow": [_WORKFLOW, "rare.workflow_run-00000100", "nothing"],
    "queue": ["high", "nobody"],
    "worker": [_WORKER, "nobody"],
    "about": ["shop.customer:1", "shop.order:7", "shop.order:999999"],
    "waiting_queue": ["approved", "nothing"],
    "place": [_PLACE, "nowhere"],
    "cause": ["cause-3"],
    "since": ["hour", "day"],
    "created_from": ["2026-01-01T00:00"],
    "created_until": ["2026-01-01T00:00"],
    "finished_from": ["2026-01-01T00:00"],
    "finished_until": ["2100-01-01T00:00"],
    "attention": ["true"],
    "held": ["true"],
    "undone": ["true"],
    "stuck": ["true"],
    "diverged": ["true"],
    "children": ["true"],
    "alerts": ["true"],
}


@dataclass(frozen=True)
class Asked:
    """A request: a GET, or a POST with `data`, which shows a confirmation or a plan and changes nothing.

    `is_whole`: the answer has everything by its nature, as an export. `is_json`: the data is sent as JSON, not as a
    form's.
    """

    address: str
    data: Mapping[str, Any] = field(default_factory=dict)
    is_whole: bool = False
    is_json: bool = False

    @property
    def title(self) -> str:
        """The address, and what is posted to it."""
        return f"POST {self.address} {dict(self.data)}" if self.data else self.address


def every_request() -> Iterator[Asked]:
    """All of them. Raises LookupError, see above."""
    known = _admin() | _interface()
    missing = sorted((names_of_admin() | names_of_interface()) - known.keys() - _WRITES)
    if missing:
        raise LookupError(f"Expected a request for each address. Add some for {', '.join(missing)}.")
    if fields := FilterForm.base_fields.keys() - _FILTERS.keys():
        raise LookupError(f"Expected a value for each filter of the list. Add some for {', '.join(sorted(fields))}.")
    for name in sorted(known):
        yield from known[name]


def _to(name: str, *keys: Any, **query: Any) -> Asked:
    address = reverse(name, args=[*keys])
    return Asked(f"{address}?{urlencode(query, doseq=True)}" if query else address)


def _page(name: str, *keys: Any, **query: Any) -> Asked:
    return _to(
        f"admin:durable_run_{name}", *(as_key(each) if isinstance(each, str) else each for each in keys), **query
    )


def _admin() -> dict[str, list[Asked]]:
    cause = Cause.objects.order_by("pk").first()
    action, view = OperatorAction.objects.order_by("pk").first(), SavedView.objects.order_by("pk").first()
    assert cause is not None
    assert action is not None
    assert view is not None
    message = QueueMessage.objects.filter(run_id=LONG).order_by("-order").first()
    assert message is not None
    log = "admin:durable_operatoraction_changelist"
    runs = (LONG, DEEP, _FAILED, _COMPLETED, PARENT, MAPPER, _KEYED)
    schedules = list(Schedule.objects.order_by("name").values_list("name", flat=True)[:1])
    databases = list(DatabaseMark.objects.values_list("name", flat=True))
    limits = list(Limit.objects.order_by("name").values_list("name", flat=True)[:2])
    pages: dict[str, list[Asked]] = {
        "changelist": [*_lists(live=""), *_lists(live="1")],
        "names": [_page("names", kind, **query) for kind in KINDS for query in ({}, {"q": "3"}, {"q": "none"})],
        "inbox": [_page("inbox")],
        "question": [_page("question", "0" * 16)],
        "overview": [_page("overview")],
        "causes": [_page("causes")],
        "cause": [_page("cause", cause.fingerprint)],
        "running": [_page("running")],
        "events": [_page("events"), _page("events", key="7")],
        "queues": [_page("queues")],
        "queue": [_page("queue", "default"), _page("queue", "high")],
        "limits": [_page("limits")],
        "limit": [_page("limit", each) for each in limits],
        "limit_act": [*(_page("limit_act", each, "set") for each in limits), _page("limit_act", "bank", "close")],
        "databases": [_page("databases")],
        "database": [_page("database", each) for each in databases],
        "database_act": [_page("database_act", each, "restored") for each in databases],
        "schedules": [_page("schedules"), *(_page("schedules", after=each) for each in ("m", "report 5"))],
        "schedule": [_page("schedule", each) for each in schedules],
        "schedule_create": [_page("schedule_create")],
        "schedule_act": [
            _page("schedule_act", each, verb) for each in schedules for verb in ("run", "pause", "backfill")
        ],
        "workers": [_page("workers")],
        "worker": [_page("worker", _WORKER)],
        "workflows": [_page("workflows"), _page("workflows", after="rare.workflow_run-00000150")],
        "workflow": [_page("workflow", each) for each in (_WORKFLOW, "big.long", "scale.import", "shop.fulfil")],
        "bulk_result": [_page("bulk_result", BULK)],
        "bulk_live": [_page("bulk_live", BULK)],
        "compare": [
            _page("compare", one, **{"with": other})
            for one, other in ((_FAILED, "run-00500101"), (LONG, DEEP), (DEEP, LONG))
        ],
        "change": [*(_page("change", run) for run in runs), *_parts("change", runs)],
        "lead": [],  # leads to "change"
        "stream": [_page("stream", LONG, at="step 50000")],
        "live": [*(_page("live", run) for run in runs), *_parts("live", (LONG, DEEP))],
        "step": [
            _page("step", LONG, at="step 50000"),
            _page("step", _FAILED, at=_PLACE),
            _page("step", DEEP, at="batch 100"),
            _page("step", DEEP, at="batch 100/sku 5001/fetch"),
        ],
        "running_step": [_page("running_step", _newest("running"), at=_PLACE)],
        "export": [Asked(_page("export", run).address, is_whole=True) for run in runs],
        "payload": [
            _page("payload", LONG, of="input"),
            _page("payload", LONG, of="input", find="1"),
            _page("payload", LONG, of="output", at="step 50000"),
            _page("payload", LONG, of="message", id=f"{LONG} 50000"),
        ],
        "raw": [_page("raw", LONG, of="input")],
        "bulk": [
            *(Asked(_page("bulk").address, {"verb": "recover", "all": "on", "filter": each}) for each in _SELECTED),
            *(Asked(_page("bulk").address, {"verb": "replay", "all": "on", "filter": each}) for each in _SELECTED),
            *(Asked(_page("bulk").address, {"verb": "cancel", "all": "on", "filter": each}) for each in _SELECTED),
        ],
        "save_cause": [_page("save_cause", cause.fingerprint, "mute")],
        "save_view": [],
        "delete_view": [],
        "queue_hold": [_page("queue_hold", "default", "pause")],
        "workflow_hold": [_page("workflow_hold", _WORKFLOW, "hold")],
        "workflow_start": [_page("workflow_start", "shop.fulfil")],
        "send": [_page("send", LONG)],
        "message_act": [_page("message_act", LONG, message.pk, each) for each in ("delete", "move")],
        "replay": [
            _page("replay", LONG, at="step 50000"),
            _page("replay", DEEP, at="batch 3/sku 151/fetch"),
            _page("replay", DEEP, at="batch 3"),
            _page("replay", _FAILED, at=_PLACE),
        ],
        "give_output": [
            _page("give_output", LONG, at="step 50000"),
            _page("give_output", DEEP, at="batch 3/sku 151/fetch"),
            _page("give_output", _FAILED, at=_PLACE),
        ],
        "settle": [_page("settle", LONG), _page("settle", DEEP)],
        "edit_input": [_page("edit_input", LONG), _page("edit_input", _FAILED)],
        "act": [
            *(_page("act", LONG, verb) for verb in ("cancel", "pause", "wake", "move")),
            *(_page("act", DEEP, verb) for verb in ("cancel", "pause")),
            *(_page("act", _FAILED, verb) for verb in ("recover", "restart")),
        ],
    }
    shown = {f"admin:durable_run_{name}": asked for name, asked in pages.items()}
    return shown | {
        "admin:index": [_to("admin:index")],
        "admin:app_list": [_to("admin:app_list", "durable")],
        log: [
            _to(log, **query)
            for query in (
                *({}, {"p": 50}, {"q": LONG}, {"q": "run-0001"}, {"q": "nothing"}),
                *({"person": "ada"}, {"person": "nobody"}, {"reason": "again"}, {"reason": "none"}),
                *({"bulk": BULK}, {"bulk": "none"}, {"source__exact": "api"}, {"source__exact": "admin"}),
                *({"action": "cancel"}, {"action": "mute"}, {"outcome": "refused"}, {"outcome": "denied"}),
                *({"since": "2026-01-01"}, {"until": "2026-01-01"}, {"since": "2026-01-01", "person": "nobody"}),
            )
        ],
        "admin:durable_operatoraction_change": [_to("admin:durable_operatoraction_change", action.pk)],
        "admin:durable_operatoraction_history": [],  # Django's own, refused or empty: the log is not edited
        "admin:durable_operatoraction_delete": [],
        "admin:durable_operatoraction_add": [],
    }


def _newest(state: str) -> str:
    run = Run.objects.filter(state=state).newest_first().only("id").first()
    assert run is not None
    return run.id


#: Filters whose runs a bulk counts.
_SELECTED: Final = ("?", "?state=failed", "?cause=cause-3", f"?workflow={_WORKFLOW}", "?queue=high", "?q=run-0001")


def _lists(live: str) -> list[Asked]:
    """The list of runs with each filter, in each order, and with two filters."""
    more: dict[str, Any] = {"live": live} if live else {}
    if live:
        return [_page("changelist", **more), _page("changelist", state="failed", **more)]
    columns = [each.name for each in COLUMNS]
    single = [{name: value} for name, values in _FILTERS.items() for value in values]
    pairs: list[dict[str, Any]] = [
        {"workflow": _WORKFLOW, "state": "failed"},
        {"state": ["failed", "sleeping", "cancelled"]},
        {"queue": "nobody", "state": "completed"},
        {"state": "failed", "q": "a text that none has"},
        {"cause": "cause-3", "queue": "nobody"},
        {"since": "day", "state": "completed", "workflow": _WORKFLOW},
        {"columns": columns},
        {"q": "tag:order=500001 tag:tenant=acme"},
        {"q": "tag:tenant=t7", "state": "failed"},
        {"about": "shop.customer:1", "state": "failed"},
        {"about": "shop.customer:1", "q": "tag:tenant=acme"},
        {"q": "tag:tenant=acme", "workflow": _WORKFLOW},
        {"q": "tag:tenant=acme", "sort": "finished_at"},
        {"q": "tag:tenant=none", "state": "failed"},
    ]
    sorted_ = [
        {"sort": order.value, **around}
        for order in ORDERS
        for around in ({}, {"state": "failed"}, {"workflow": _WORKFLOW}, {"queue": "nobody"}, {"cause": "cause-3"})
    ]
    return [_page("changelist", **each) for each in ({}, *single, *pairs, *sorted_)]


def _parts(name: str, runs: tuple[str, ...]) -> list[Asked]:
    """Each part of a run's page, and what opens in it."""
    asked = [_page(name, run, part=part) for run in runs for part in PART_NAMES]
    asked += [
        _page(name, LONG, part="timeline", open="step #"),
        _page(name, LONG, part="timeline", open="step #", after="50000"),
        _page(name, LONG, part="timeline", open="step 50000"),
        _page(name, LONG, part="timeline", time="real"),
        *(
            _page(name, DEEP, part="timeline", open=each)
            for each in ("batch #", "batch 7", "batch #/sku #", "batch 7/sku 351", "batch 7/sku 351/check")
        ),
        *(_page(name, run, part="history", start=start) for run in (LONG, DEEP) for start in (0, 40_000)),
        *(_page(name, run, part="history", only="failed") for run in (LONG, DEEP)),
        *(_page(name, run, part="events", order="newest") for run in (LONG, DEEP)),
        _page(name, LONG, part="values"),
        *(_page(name, LONG, part="logs", **more) for more in ({"level": "ERROR"}, {"place": "step 17"})),
    ]
    return asked


def _interface() -> dict[str, list[Asked]]:
    def to(name: str, *keys: Any, **query: Any) -> Asked:
        return _to(f"durable_api:{name}", *keys, **query)

    runs = (LONG, DEEP, _FAILED)
    asked: dict[str, list[Asked]] = {
        "root": [to("root")],
        "docs": [to("docs")],
        "schema": [to("schema")],
        "runs": [
            *(to("runs", **each) for each in ({}, {"limit": 200}, {"id_prefix": "run-0001"}, {"error": "none"})),
            *(to("runs", tag=each) for each in ("tenant:acme", "tenant:t7", ["tenant:acme", "order:500001"])),
            *(
                to("runs", **{name: value})
                for name, values in _FILTERS.items()
                for value in values
                if name not in {"q", "since"} and "T00" not in value
            ),
            *(to("runs", sort=order.value, **more) for order in ORDERS for more in ({}, {"queue": "nobody"})),
        ],
        "run": [to("run", run) for run in runs],
        "result": [to("result", _COMPLETED)],
        "entries": [*(to("entries", run) for run in runs), to("entries", LONG, limit=200, payloads="true")],
        "entry": [to("entry", LONG, "step 50000"), to("entry", DEEP, "batch 3")],
        "events": [Asked(to("events", _COMPLETED).address, is_whole=True)],
        "chunks": [to("chunks", LONG, "step 50000")],
        "logs": [to("logs", LONG), to("logs", LONG, level="ERROR")],
        "values": [*(to("values", run) for run in runs)],
        "timeline": [*(to("timeline", run) for run in runs), to("timeline", LONG, open="step #")],
        "tree": [
            *(to("tree", run) for run in runs),
            to("tree", DEEP, only_failed="true"),
            to("tree", LONG, start=40_000),
        ],
        "children": [
            *(
                to("children", run, **each)
                for run in (LONG, PARENT, MAPPER)
                for each in ({}, {"state": "failed"}, {"limit": 200})
            ),
        ],
        "running-of-run": [to("running-of-run", LONG)],
        "messages": [to("messages", LONG), to("messages", LONG, limit=200)],
        "message": [to("message", LONG, f"{LONG} 50000")],
        "replay-plan": [to("replay-plan", LONG, location="step 50000"), to("replay-plan", DEEP, location="batch 3")],
        "comparison": [to("comparison", LONG, other=DEEP), to("comparison", _FAILED, other="run-00500101")],
        "bulks": [],
        "bulk-plan": [
            Asked(to("bulk-plan").address, {"verb": verb, "filter": each}, is_json=True)
            for verb in ("recover", "replay")
            for each in ({"state": ["failed"]}, {"workflow": _WORKFLOW})
        ],
        "bulk": [to("bulk", BULK)],
        "causes": [to("causes")],
        "running": [to("running")],
        "counts": [to("counts")],
        "workflows": [to("workflows")],
        "workflow": [to("workflow", "shop.fulfil")],
        "workflow-stats": [to("workflow-stats", each) for each in (_WORKFLOW, "big.long", "scale.import")],
        "publish": [to("publish"), to("publish", key="7")],
        "event-waits": [to("event-waits"), to("event-waits", key="7")],
        "queues": [to("queues")],
        "limits": [to("limits")],
        "limit": [to("limit", each) for each in Limit.objects.order_by("name").values_list("name", flat=True)[:2]],
        "rates": [to("rates")],
        "rate": [to("rate", each) for each in RateLimit.objects.order_by("name").values_list("name", flat=True)[:1]],
        "workers": [to("workers")],
        "database": [to("database")],
        "schedules": [
            *(
                to("schedules", **each)
                for each in ({}, {"limit": 200}, {"workflow": "shop.fulfil"}, {"workflow": _WORKFLOW})
            ),
        ],
        "schedule": [
            to("schedule", each) for each in Schedule.objects.order_by("name").values_list("name", flat=True)[:1]
        ],
        "operator-actions": [
            to("operator-actions", **query)
            for query in (
                *({}, {"run": LONG}, {"actor": "ada"}, {"actor": "nobody"}, {"bulk": BULK}, {"action": "mute"}),
                *({"outcome": "denied"}, {"reason": "none"}, {"limit": 200}),
            )
        ],
        "anywhere": [],
    }
    return {f"durable_api:{name}": each for name, each in asked.items()}


#: Addresses of the interface that take no GET.
_WRITES: Final = {
    f"durable_api:{name}"
    for name in (
        *(
            "pause-schedule",
            "resume-schedule",
            "run-schedule",
            "backfill",
            "edit-schedule",
            "override-schedule",
            "take-back-override",
            "delete-schedule",
            "ask",
            "settle",
            "wake",
            "move",
            "pause",
            "resume",
            "cancel",
            "abandon",
            "stack",
            "recover",
            "restart",
            "replay",
            "give-output",
        ),
        *(
            "go-on",
            "stop-here",
            "hold",
            "release",
            "pause-queue",
            "restored",
            "resume-queue",
            "set-limit",
            "take-back-limit",
            "note",
        ),
        *("set-rate", "take-back-rate", "close-limit", "open-limit"),
        *("delete-message", "move-message", "publish", "question", "questions"),
        *(f"{verb}-question" for verb in ("answer", "comment", "hand-over", "claim", "release")),
    )
}


def runs_of_a_workflow(_request: Any, runs: RunQuerySet) -> RunQuerySet:
    """A seventh of all runs, by a column that an index begins with."""
    return runs.filter(workflow="big.workflow_2")


def runs_of_few(_request: Any, runs: RunQuerySet) -> RunQuerySet:
    """Two runs of a million, by such a column."""
    return runs.filter(workflow__in=["rare.workflow_run-00000101", "rare.workflow_run-00000102"])


def runs_of_a_queue(_request: Any, runs: RunQuerySet) -> RunQuerySet:
    """No run, by a column that no index begins with."""
    return runs.filter(queue="nobody")


#: What both settings are, by the word of the option.
LIMITED: Final[Mapping[str, str]] = {
    "workflow": f"{__name__}.runs_of_a_workflow",
    "few": f"{__name__}.runs_of_few",
    "queue": f"{__name__}.runs_of_a_queue",
}
