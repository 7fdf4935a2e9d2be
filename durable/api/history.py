"""A run's history: a tree of it, a waterfall, one entry with its attempts, and two runs side by side."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.base import View
from durable.api.fields import Id, Query, QueryFlag, Text, serializer_of
from durable.api.schema import described
from durable.conf import conf
from durable.core.errors import EntryNotFoundError
from durable.core.location import MAX_LOCATION
from durable.inspection.activities import activities_of_runs, saved_by
from durable.inspection.comparison import compare_runs
from durable.inspection.counting import fitting, sized
from durable.inspection.timeline import build_timeline
from durable.inspection.tree import history_tree
from durable.listings.access import may, seen_of, visible_run
from durable.listings.history import Comparison, EntryDetail, Timeline, Tree, seen_history
from durable.listings.shapes import data_of
from durable.models import Attempt, Entry

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
        chosen, _ = fitting(sized(failed, "error"))
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
