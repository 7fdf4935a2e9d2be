"""The base of all endpoints: everything that the host's settings could otherwise change; and the endpoints of the
listings in `durable.listings`.

Closed by default: a request without an authenticated user, or without the permission that it needs, gets nothing,
whatever the host's defaults for other interfaces are. Which runs a user sees is in `durable.listings.access`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from django.db import DatabaseError, DataError, connections, transaction
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.encoding import escape_uri_path
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.throttling import ScopedRateThrottle
from rest_framework.views import APIView

from durable.api.fields import Form, query_of, serializer_of
from durable.api.requests import BodyRequest, JSONParser, JSONRenderer, Negotiation, check_origin, problem_of
from durable.api.schema import Description, described
from durable.inspection.reading import from_replica, read_alias, reading
from durable.listings.access import is_signed_in, may, seen_of, visible_run
from durable.listings.listing import Listing
from durable.listings.problems import CONTENT_TYPE, ProblemError
from durable.listings.shapes import Seen, data_of


class Permitted(BasePermission):
    """The user is authenticated and has the permissions that the view's method needs (`permissions_of`)."""

    message = "This needs a permission that you do not have."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the method may be called; views that make changes leave that to the verb."""
        if not is_signed_in(request):
            return False
        missing = [each for each in view.permissions_of(request.method) if not may(request, each)]
        if missing:
            names = " and ".join(f"durable.{each}" for each in missing)
            self.message = (
                f"This needs the permission {names}; ask an administrator to grant it to your user or to a group."
            )
        return not missing


def is_still_permitted(request: Request) -> bool:
    """Return whether the user still exists, is active and may view runs; reloads the user from the database."""
    user = request.user
    if isinstance(user, Model):
        found = user.__class__._base_manager.filter(pk=user.pk).first()
        if found is None:
            return False
        request.user = found
    return is_signed_in(request) and may(request, "view_run")


READ = "durable-read"
WRITE = "durable-write"
STREAM = "durable-stream"


class Throttle(ScopedRateThrottle):
    """The rate limit of a view; its POST has a scope of its own. Rates come from the host's `DEFAULT_THROTTLE_RATES`.

    A scope without a rate is not throttled.
    """

    def allow_request(self, request: Request, view: Any) -> bool:
        self.scope = WRITE if request.method == "POST" else view.throttle_scope
        rates: Any = api_settings.DEFAULT_THROTTLE_RATES
        rate = rates.get(self.scope)
        if rate is None:
            return True
        self.rate = rate
        self.num_requests, self.duration = self.parse_rate(rate)
        return super(ScopedRateThrottle, self).allow_request(request, view)


class View(APIView):
    """An endpoint. The host decides only how users are authenticated."""

    permission_classes = (Permitted,)
    throttle_classes = (Throttle,)
    parser_classes = (JSONParser,)
    renderer_classes: tuple[type[JSONRenderer], ...] = (JSONRenderer,)
    content_negotiation_class = Negotiation
    metadata_class = None
    versioning_class = None
    throttle_scope = READ
    schema = Description()

    #: The permissions that reading needs.
    reads_with: ClassVar[tuple[str, ...]] = ("view_run",)
    #: Whether a GET returns a list, which may be read from a replica. A request with `Cache-Control: no-cache` is not.
    is_list: ClassVar[bool] = False
    #: Whether a GET may wait for a change.
    waits: ClassVar[bool] = False

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view, exempt from the request's transaction: it may wait, and logs its refusals."""
        view = super().as_view(**initkwargs)
        for alias in connections:
            view = transaction.non_atomic_requests(using=alias)(view)
        return view

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Answer, with a time limit for each statement if the request only reads and does not wait."""
        if request.method not in ("GET", "HEAD") or self.waits:
            return super().dispatch(request, *args, **kwargs)
        may_be_old = self.is_list and "no-cache" not in request.headers.get("Cache-Control", "")
        with from_replica(wanted=may_be_old) as source, reading():
            response = super().dispatch(request, *args, **kwargs)
            if source is not None and source.age is not None:
                response["Durable-Age"] = f"{source.age:.1f}"
            return response

    def get_authenticators(self) -> list[Any]:
        classes: Any = api_settings.DEFAULT_AUTHENTICATION_CLASSES  # imported by DRF already
        return [each() for each in classes]

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> BodyRequest:
        """Return the request; its body is read even without a declared length."""
        return BodyRequest(
            request,
            parsers=self.get_parsers(),
            authenticators=self.get_authenticators(),
            negotiator=self.get_content_negotiator(),
            parser_context=self.get_parser_context(request),
        )

    def perform_authentication(self, request: Any) -> None:
        """Authenticate the user. Raises AuthenticationFailed for credentials that no database can look up."""
        try:
            super().perform_authentication(request)
        except (ValueError, DataError) as error:  # PostgreSQL takes no NUL in a user's name
            request._not_authenticated()
            raise AuthenticationFailed("the credentials cannot be read") from error

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the user and the rate, and that no page of another site uses the user's credentials for a change."""
        super().initial(request, *args, **kwargs)
        if request.method == "POST":
            check_origin(request)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Forbid caches to store the answer: it depends on the user and on the time."""
        response = super().finalize_response(request, response, *args, **kwargs)
        response.setdefault("Cache-Control", "no-store")
        return response

    def permissions_of(self, method: str | None) -> tuple[str, ...]:
        """Return the permissions that the method needs first. For a POST there are none: its verb checks, and logs
        denials.
        """
        return () if method == "POST" else self.reads_with

    def permission_denied(self, request: Request, message: str | None = None, code: str | None = None) -> NoReturn:
        """Raise a problem: the user is not authenticated, or lacks the permission."""
        if not is_signed_in(request):
            raise NotAuthenticated
        super().permission_denied(request, message, code)

    def handle_exception(self, exc: Exception) -> Response:
        """Return a problem document, without the host's handler; any other error is a defect and is raised."""
        challenge = self.get_authenticate_header(self.request)
        problem = problem_of(exc, challenge=challenge)
        if problem is None:
            raise exc
        if isinstance(exc, DatabaseError) and connections[read_alias()].in_atomic_block:
            transaction.set_rollback(True, using=read_alias())  # opened by `reading`, which does not see the error
        document = problem.document(escape_uri_path(self.request.path))
        response = Response(document, problem.status, headers=problem.headers, content_type=CONTENT_TYPE)
        response.exception = True
        return response

    def form(self, kind: type[Form], request: Request) -> dict[str, Any]:
        """Return the body's values. Raises ValidationError; an absent body is an empty form."""
        form = kind(data=request.data)
        form.is_valid(raise_exception=True)
        values: dict[str, Any] = form.validated_data
        return values

    def require(self, request: Request, permission: str, what: str) -> None:
        """Raise a problem unless the user has this permission of the app durable."""
        if not may(request, permission):
            raise ProblemError("permission-denied", 403, f"{what} needs the permission durable.{permission}.")


def link(request: Request, name: str, **parts: Any) -> str:
    """Return the URL of an endpoint, under any prefix and namespace."""
    match = request.resolver_match
    namespaces = [] if match is None else match.namespaces
    return reverse(":".join([*namespaces, name]), kwargs=parts)


def found(listing: Listing, seen: Seen, name: str) -> Any:
    """Return the item with this name. Raises a problem if there is none."""
    if (one := listing.find(seen, name)) is None:
        raise ProblemError("not-found", 404, listing.missing.format(name=name[:200]))
    return one


def list_view(listing: Listing) -> Any:
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
