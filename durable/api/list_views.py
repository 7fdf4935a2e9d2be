"""The endpoints of the listings in `durable.listings`: each reads a page and returns it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from durable.api.base import View
from durable.api.fields import query_of, serializer_of
from durable.api.schema import described
from durable.listings.access import seen_of, visible_run
from durable.listings.listing import Listing
from durable.listings.problems import ProblemError
from durable.listings.shapes import Seen, data_of


def found(listing: Listing, seen: Seen, name: str) -> Any:
    """Return the item with this name. Raises a problem if there is none."""
    if (one := listing.find(seen, name)) is None:
        raise ProblemError("not-found", 404, listing.missing.format(name=name[:200]))
    return one


def list_view(listing: Listing) -> Any:
    """Return the endpoint of a listing."""
    return _view(listing, listed(listing), is_list=not listing.of_run)


def one_view(listing: Listing) -> Any:
    """Return the endpoint of a single item of a listing, found by its name."""

    def get(_self: View, request: Request, name: str) -> Response:
        seen = seen_of(request)
        return Response(data_of(listing.item, found(listing, seen, name), seen))

    get.__doc__ = listing.one_over_rest
    operation = f"get_{listing.name.removesuffix('s')}"
    return _view(listing, described(operation_id=operation, responses=serializer_of(listing.item))(get), is_list=False)


def listed(listing: Listing) -> Callable[..., Response]:
    """Return the GET method of a listing."""
    form = query_of(listing) if listing.filters or listing.is_paged else None

    def get(self: View, request: Request, run_id: str | None = None) -> Response:
        asked = {} if form is None else form.read(request.query_params)
        if asked.get("payloads"):
            self.require(request, "view_payload", "Seeing payloads")
        if run_id is not None:
            asked["run"] = visible_run(request, run_id)
        seen = seen_of(request)
        page = listing.read(seen, **asked)
        return Response(data_of(listing.page, page, page.seen or seen))

    get.__doc__ = listing.over_rest
    parameters = [] if form is None else [form]
    operation = f"list_{listing.name}"
    return described(operation_id=operation, parameters=parameters, responses=serializer_of(listing.page))(get)


def _view(listing: Listing, get: Callable[..., Response], *, is_list: bool) -> Any:
    members: dict[str, Any] = {"about": listing.about, "reads_with": listing.reads_with, "is_list": is_list, "get": get}
    view: type[View] = type("ListView", (View,), members)
    return view.as_view()
