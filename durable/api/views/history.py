"""A run's history: a page of it, a tree of it, one entry with its attempts."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from durable import runtime
from durable.api.access import may, visible_run
from durable.api.render import attempt_shown, entry_shown
from durable.api.schema import described
from durable.api.serializers.history import (
    EntryDetailSerializer,
    EntryPageSerializer,
    EntryQuery,
    EntrySerializer,
    TreeQuery,
    TreeSerializer,
)
from durable.api.serializers.timeline import TimelineQuery, TimelineSerializer
from durable.api.sizes import fitting, sized
from durable.api.views.base import View
from durable.conf import conf
from durable.core.errors import EntryNotFoundError
from durable.inspection import activities_of_runs, build_timeline, history_tree
from durable.inspection.activities import saved_by
from durable.inspection.pagination import cursor_of, key_of
from durable.models import Attempt, Entry

_MOST_ATTEMPTS = 1_000
_LARGE = ("data", "metadata__error", "metadata__rollback_error")  # columns without another limit of their length
_PAYLOADS = ("output", "arguments")


class EntriesView(View):
    """The records of a run's operations."""

    about = "history"

    @described(operation_id="list_entries", parameters=[EntryQuery], responses=EntryPageSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return the entries in the order in which they began; with `payloads=true` their arguments and results.

        A page ends before `limit` where it would take more than 8 MiB. Payloads need `durable.view_payload`.
        """
        query = EntryQuery.read(request.query_params)
        after = key_of(query.get("cursor"), int)
        if query["payloads"]:
            self.require(request, "view_payload", "Seeing payloads")
        run = visible_run(request, run_id)
        # The page is selected by its keys, so that metadata and payloads of other entries are not read.
        keys = Entry.objects.using(conf.DATABASE).filter(run=run).order_by("ordinal").values_list("ordinal", "pk")
        if after is not None:
            keys = keys.filter(ordinal__gt=after[0])
        page = list(keys[: query["limit"] + 1])
        found = Entry.objects.using(conf.DATABASE).filter(pk__in=[key for _, key in page[: query["limit"]]])
        columns = _LARGE + _PAYLOADS if query["payloads"] else _LARGE
        chosen, _ = fitting(sized(found.order_by("ordinal"), *columns))
        ordinals = {key: ordinal for ordinal, key in page}
        more = len(page) > len(chosen)
        shown = Entry.objects.using(conf.DATABASE).filter(pk__in=chosen)
        shown = shown.select_related("metadata").order_by("ordinal")
        if not query["payloads"]:
            shown = shown.defer("output", "arguments")
        results = [
            entry_shown(run, each, may_see_payloads=may(request, "view_payload"), with_payloads=query["payloads"])
            for each in shown
        ]
        return Response(
            {
                "results": EntrySerializer(results, many=True).data,
                "next_cursor": cursor_of(ordinals[chosen[-1]]) if more and chosen else None,
            }
        )


class TreeView(View):
    """A history as a tree."""

    about = "history"

    @described(operation_id="get_tree", parameters=[TreeQuery], responses=TreeSerializer)
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
        return Response(TreeSerializer(tree).data)


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

    @described(operation_id="get_entry", responses=EntryDetailSerializer)
    def get(self, request: Request, run_id: str, location: str) -> Response:
        """Return the entry at a location such as `ship/label/buy`, with its failed attempts.

        Its payloads need `durable.view_payload`.
        """
        run = visible_run(request, run_id)
        entries = Entry.objects.using(conf.DATABASE).filter(run=run, location=location).select_related("metadata")
        entry = entries.first()
        if entry is None:
            raise EntryNotFoundError(run_id, location)
        may_see = may(request, "view_payload")
        attempts = Attempt.objects.using(conf.DATABASE).order_by("id")
        failed = attempts.filter(run=run, location=location)[:_MOST_ATTEMPTS]
        chosen, _ = fitting(sized(failed, "error"))
        shown = entry_shown(run, entry, may_see_payloads=may_see, with_payloads=True)
        shown["saved"] = saved_by(run, [location]).get(location) if may_see else None
        shown["failed_attempts"] = [
            attempt_shown(run, each, may_see_payloads=may_see) for each in attempts.filter(pk__in=chosen)
        ]
        return Response(EntryDetailSerializer(shown).data)
