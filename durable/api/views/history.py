"""A run's history: a tree of it, a waterfall, one entry with its attempts."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.access import visible_run
from durable.api.list_views import seen_of
from durable.api.schema import described
from durable.api.serializers.history import TreeQuery
from durable.api.serializers.shapes import serializer_of
from durable.api.serializers.timeline import TimelineQuery, TimelineSerializer
from durable.api.views.base import View
from durable.conf import conf
from durable.core.errors import EntryNotFoundError
from durable.inspection.activities import activities_of_runs, saved_by
from durable.inspection.sizes import fitting, sized
from durable.inspection.timeline import build_timeline
from durable.inspection.tree import history_tree
from durable.listings.history import EntryDetail, Tree, seen_history
from durable.listings.shapes import data_of
from durable.models import Attempt, Entry

_MOST_ATTEMPTS = 1_000


class TreeView(View):
    """A history as a tree."""

    about = "history"

    @described(operation_id="get_tree", parameters=[TreeQuery], responses=serializer_of(Tree))
    def get(self, request: Request, run_id: str) -> Response:
        """Return up to 200 locations of the history with the scopes around them."""
        query = TreeQuery.read(request.query_params)
        run = visible_run(request, run_id)
        running = activities_of_runs([run], runtime.current().now())[run.id]
        tree = history_tree(
            run,
            start=query.get("start"),
            only_failed=query["only_failed"],
            running=running,
        )
        return Response(data_of(Tree, tree, seen_of(request)))


class TimelineView(View):
    """A history as a waterfall."""

    about = "history"

    @described(operation_id="get_timeline", parameters=[TimelineQuery], responses=TimelineSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return a row for each place of the whole history; iterations, equal branches and numbered steps share one."""
        query = TimelineQuery.read(request.query_params)
        run = visible_run(request, run_id)
        timeline = build_timeline(run, runtime.current().now(), opened=query["open"], after=query["after"])
        return Response(TimelineSerializer(timeline).data)


class EntryView(View):
    """One entry."""

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
