"""The base of all endpoints: everything that the host's settings could otherwise change."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from django.db import DatabaseError, DataError, connections, transaction
from django.http import HttpRequest
from django.urls import reverse
from django.utils.encoding import escape_uri_path
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from durable.api.access import READ, Permitted, Throttle
from durable.api.fields import Form
from durable.api.problems import problem_of
from durable.api.requests import BodyRequest, JSONParser, JSONRenderer, Negotiation, check_origin
from durable.api.schema import Description
from durable.inspection.reading import from_replica, read_alias, reading
from durable.listings.access import is_signed_in, may
from durable.listings.problems import CONTENT_TYPE, ProblemError


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
        """Return the host's authentication classes."""
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
