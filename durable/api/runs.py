"""Runs: list, count, start, read, and wait for their results; and a run's history: a tree of it, a waterfall, one entry
with its attempts, and two runs side by side.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.http import HttpResponse
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.base import View, link, listed
from durable.api.fields import (
    Form,
    Id,
    JSONArray,
    JSONObject,
    Number,
    Query,
    QueryFlag,
    Text,
    Value,
    audit_reason,
    option_field,
    serializer_of,
)
from durable.api.long_poll import MAX_WAIT, wait_for
from durable.api.requests import Done, answered
from durable.api.schema import described
from durable.conf import conf
from durable.core.errors import EntryNotFoundError
from durable.core.location import MAX_LOCATION
from durable.core.places import Place
from durable.core.records import ENDED
from durable.definitions import Workflow
from durable.inspection.activities import activities_of_runs, saved_by
from durable.inspection.comparison import compare_runs
from durable.inspection.counting import fitting
from durable.inspection.payloads import payload
from durable.inspection.timeline import build_timeline
from durable.inspection.tree import history_tree
from durable.inspection.workflows import count_by_state
from durable.listings.access import actor_of, admit, may, seen_by, seen_of, startable, visible_run
from durable.listings.history import Comparison, EntryDetail, Timeline, Tree, seen_history
from durable.listings.runs import RUNS, Result, RunDetail, RunReference, error_of, seen_runs
from durable.listings.shapes import data_of
from durable.listings.starts import check_queue_served, made, reference_of, start_asked
from durable.listings.work import Counts
from durable.models import Attempt, Entry, Run
from durable.models.rows import weight
from durable.operations.audit import acting_as
from durable.operations.start_options import START_OPTIONS

_EXPANDABLE = ("input", "output")


class RunQuery(Query):
    expand = Text(required=False, help_text="`input`, `output`, or both, separated by a comma.")

    def validate_expand(self, value: str) -> list[str]:
        names = value.split(",")
        if unknown := [name for name in names if name not in _EXPANDABLE]:
            raise ValidationError(f"{unknown[0]!r} cannot be expanded; {' and '.join(_EXPANDABLE)} can.")
        return names


class ResultQuery(Query):
    wait = Number(required=False, default=0, min_value=0, max_value=MAX_WAIT, help_text="Seconds.")


class StartMessageForm(Form):
    """A message to the run that has the key."""

    queue = Text(min_length=1, max_length=128)
    body = Value(required=False, default=None, allow_null=True)


class StartForm(Form):
    """The workflow to start, and the options of the start."""

    workflow = Text(max_length=200)
    args = JSONArray(required=False, default=list)
    kwargs = JSONObject(required=False, default=dict)
    message = StartMessageForm(
        required=False, help_text="Sent to the open run that has the key, or to the new one; needs `key`."
    )
    reason = audit_reason()

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        last = {name: fields.pop(name) for name in ("message", "reason")}
        return fields | {each.name: option_field(each) for each in START_OPTIONS} | last


#: The answers of endpoints that create a run, or find the one that they created before.
REFERENCES = {200: serializer_of(RunReference), 201: serializer_of(RunReference)}


class RunsView(View):
    about = "runs"
    is_list = True

    get = listed(RUNS)

    @described(operation_id="start_run", request=StartForm, responses=REFERENCES)
    def post(self, request: Request) -> HttpResponse:
        """Start a run: 201. With an id that exists, return its run: 200, or 409 if its workflow or input differ.

        Needs `durable.start_run`.
        """
        admit(request, "start", "")
        given = self.form(StartForm, request)
        workflow = startable(given["workflow"])
        check_queue_served(given.get("queue"))
        with acting_as(actor_of(request), reason=given["reason"], sees=seen_by(request)):
            return answered(request, lambda: _started(request, workflow, given))


class CountsView(View):
    about = "runs"
    is_list = True

    @described(operation_id="count_runs", responses=serializer_of(Counts))
    def get(self, request: Request) -> Response:
        """Return the number of runs in each state, counted up to a cap."""
        seen = seen_of(request)
        return Response(data_of(Counts, {"states": count_by_state(seen.within)}, seen))


class RunView(View):
    about = "runs"

    @described(operation_id="get_run", parameters=[RunQuery], responses=serializer_of(RunDetail))
    def get(self, request: Request, run_id: str) -> Response:
        """Return the run. Its input and output, which need `durable.view_payload`, are included on request."""
        expand = RunQuery.read(request.query_params).get("expand", [])
        if expand:
            self.require(request, "view_payload", "Seeing inputs and outputs")
        run = visible_run(request, run_id)
        return Response(data_of(RunDetail, run, seen_runs(seen_of(request), [run], expand=expand)))


class ResultView(View):
    about = "runs"
    reads_with = ("view_run", "view_payload")
    waits = True

    @described(operation_id="get_result", parameters=[ResultQuery], responses=serializer_of(Result))
    def get(self, request: Request, run_id: str) -> Response:
        """Return the run's output or error, as soon as it has ended, after `wait` seconds at most.

        A server that has many waiting requests already, or has one thread, answers at once.
        """
        wait = ResultQuery.read(request.query_params)["wait"]

        def ended() -> Run | None:
            run = visible_run(request, run_id)
            return run if run.state in ENDED else None

        run = wait_for(request, ended, wait) or visible_run(request, run_id)
        result = SimpleNamespace(
            id=run.id,
            state=run.state,
            has_ended=run.state in ENDED,
            output=payload(run.workflow, "output", run.output, Place(run.id, "output")),
            error=error_of(run, run.error, payloads=True),
        )
        return Response(data_of(Result, result, seen_of(request)))


def reference(request: Request, run_id: str, *, status: int = 200) -> Done:
    return Done(data=reference_of(run_id), status=status, location=link(request, "run", run_id=run_id))


def _started(request: Request, workflow: Workflow[Any, Any], given: dict[str, Any]) -> Done:
    run = made(given.get("id"), lambda: start_asked(workflow, given))
    return reference(request, run.id, status=201 if run.is_new else 200)


# -- the history

_MOST_ATTEMPTS = 1_000


class TreeQuery(Query):
    start = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=10**9,
        help_text="The position to begin at; without it, where the run is. Above 5,000 entries it counts entries.",
    )
    only_failed = QueryFlag(required=False, default=False, help_text="What has failed or is not completed.")


class TreeView(View):
    about = "history"

    @described(operation_id="get_tree", parameters=[TreeQuery], responses=serializer_of(Tree))
    def get(self, request: Request, run_id: str) -> Response:
        """Return up to 200 locations of the history with the scopes around them."""
        query, seen = TreeQuery.read(request.query_params), seen_of(request)
        run = visible_run(request, run_id)
        running = activities_of_runs([run], runtime.current().now())[run.id]
        tree = history_tree(
            run,
            start=query.get("start"),
            only_failed=query["only_failed"],
            running=running,
            with_payloads=seen.payloads,
        )
        return Response(data_of(Tree, tree, seen))


class TimelineQuery(Query):
    open = Text(
        required=False,
        default="",
        allow_blank=True,
        max_length=MAX_LOCATION,
        help_text="What a row's `opens` says: its members are rows too, the failed ones first.",
    )
    after = serializers.IntegerField(
        required=False, default=-1, min_value=-1, max_value=2**53, help_text="The `more` of the page before."
    )


class TimelineView(View):
    about = "history"

    @described(operation_id="get_timeline", parameters=[TimelineQuery], responses=serializer_of(Timeline))
    def get(self, request: Request, run_id: str) -> Response:
        """Return a row for each place of the whole history; iterations, equal branches and numbered steps share one."""
        query = TimelineQuery.read(request.query_params)
        run, seen = visible_run(request, run_id), seen_of(request)
        timeline = build_timeline(run, seen.now, opened=query["open"], after=query["after"])
        return Response(data_of(Timeline, timeline, seen))


class EntryView(View):
    about = "history"

    @described(operation_id="get_entry", responses=serializer_of(EntryDetail))
    def get(self, request: Request, run_id: str, location: str) -> Response:
        """Return the entry at a location such as `ship/label/buy`, with its failed attempts.

        Its payloads need `durable.view_payload`.
        """
        run = visible_run(request, run_id)
        entries = Entry.objects.using(conf.DATABASE).filter(run=run, location=location).select_related("metadata")
        entry = entries.first()
        if entry is None:
            raise EntryNotFoundError(run_id, location)
        seen = seen_of(request)
        attempts = Attempt.objects.using(conf.DATABASE).order_by("id")
        failed = attempts.filter(run=run, location=location)[:_MOST_ATTEMPTS]
        chosen, _ = fitting(failed.values_list("pk", weight("error")))
        beside = seen_history(
            seen,
            run,
            with_payloads=True,
            saved=saved_by(run, [location]).get(location) if seen.payloads else None,
            failed_attempts=list(attempts.filter(pk__in=chosen)),
        )
        return Response(data_of(EntryDetail, entry, beside))


class ComparisonQuery(Query):
    other = Id(help_text="The run to compare with.")
    start = serializers.IntegerField(required=False, default=0, min_value=0, max_value=1_000_000)


class ComparisonView(View):
    about = "history"

    @described(operation_id="compare_runs", parameters=[ComparisonQuery], responses=serializer_of(Comparison))
    def get(self, request: Request, run_id: str) -> Response:
        """Return a page of the places of this run and of another one, for example its replay, with what differs."""
        query = ComparisonQuery.read(request.query_params)
        left, right = visible_run(request, run_id), visible_run(request, query["other"])
        found = compare_runs(left, right, with_payloads=may(request, "view_payload"), start=query["start"])
        return Response(data_of(Comparison, found, seen_of(request)))
