"""The branches of the shop, which are its tenants: which one a request is for, and that its orders' runs know it.

`/?branch=hill` chooses one, and a cookie remembers it. Mails of an order are signed by the branch at which it was
placed, whenever a worker sends them: `DURABLE["CARRY"]` in the settings names `carry`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase

__all__ = ["BRANCHES", "BranchCarrier", "ChosenBranch", "carry", "current_branch"]

BRANCHES = {"harbour": "The shop at the harbour", "hill": "The shop on the hill"}
_COOKIE = "branch"

_current: ContextVar[str | None] = ContextVar("shop_branch", default=None)


def current_branch() -> str:
    """Return the name of the branch in force; "" where nobody has chosen one."""
    return BRANCHES.get(_current.get() or "", "")


class BranchCarrier:
    """Carries the branch of a request into the runs that it starts."""

    def save(self) -> str | None:
        """Return the slug of the branch, or None."""
        return _current.get()

    @contextmanager
    def restored(self, slug: str) -> Iterator[None]:
        """Put the branch in force."""
        token = _current.set(slug)
        try:
            yield
        finally:
            _current.reset(token)


carry = BranchCarrier()


class ChosenBranch:
    """Middleware that puts the branch of the request in force."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        chosen = request.GET.get("branch", "")
        slug = chosen if chosen in BRANCHES else request.COOKIES.get(_COOKIE, "")
        if slug not in BRANCHES:
            return self.get_response(request)
        with carry.restored(slug):
            response = self.get_response(request)
        if slug == chosen:
            response.set_cookie(_COOKIE, slug, httponly=True, samesite="Lax", secure=request.is_secure())
        return response
