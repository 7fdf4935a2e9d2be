"""The audit log."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.access import is_limited, visible_runs
from durable.api.schema import described
from durable.api.serializers.system import ActionListQuery, ActionPageSerializer, ActionSerializer
from durable.api.views.base import View
from durable.core.clock import to_utc
from durable.inspection.actions import ActionCriteria, detail_without_runs, search_actions, visible_page
from durable.inspection.pagination import InvalidCursorError, cursor_of, key_of


class ActionsView(View):
    """The actions of operators."""

    about = "surroundings"

    @described(operation_id="list_operator_actions", parameters=[ActionListQuery], responses=ActionPageSerializer)
    def get(self, request: Request) -> Response:
        """Return the actions on runs, the newest first, with actor, source and reason; refused ones included.

        Conditions other than run, bulk, user and time are looked for among the newest 100,000 actions before `until`.
        For a user who may see some runs only, 10,000 actions are looked through for a page.
        """
        query = ActionListQuery.read(request.query_params)
        wanted = ActionCriteria(
            run_id=query.get("run", ""),
            bulk_id=query.get("bulk", ""),
            person=query.get("actor", ""),
            action=query.get("action", ""),
            outcome=query.get("outcome", ""),
            reason=query.get("reason", ""),
            since=query.get("since"),
            until=query.get("until"),
        )
        found = search_actions(wanted).filter(_behind(query.get("cursor")))
        limit = query["limit"]
        if is_limited():
            shown, last = visible_page(found, visible_runs(request), limit)
            for each in shown:
                each.detail = detail_without_runs(each)
                if each.actor_id != request.user.pk:  # the bulk of another user is not there to read
                    each.bulk_id = ""
        else:
            page = list(found.order_by("-created_at", "-id")[: limit + 1])
            shown, last = page[:limit], page[limit - 1] if len(page) > limit else None
        return Response(
            {
                "results": ActionSerializer(shown, many=True).data,  # type: ignore[arg-type]  # many=True takes several
                "next_cursor": None if last is None else cursor_of(last.created_at.isoformat(), last.pk),
            }
        )


def _behind(cursor: str | None) -> Q:
    """Return the condition for rows after the cursor. Raises InvalidCursorError."""
    key = key_of(cursor, str, int)
    if key is None:
        return Q()
    text, number = key
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        moment = to_utc(moment)
    except ValueError:
        raise InvalidCursorError(str(cursor)) from None
    # With this condition the index begins at the time: with OR, all newer rows would be read.
    return Q(created_at__lte=moment) & ~Q(created_at=moment, id__gte=number)
