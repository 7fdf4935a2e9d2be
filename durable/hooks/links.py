"""The page of a link (`ctx.link`): a GET shows a button, a POST answers the run, once.

A GET, a HEAD or an OPTIONS never acts: programs that scan mails and show previews send these. What a POST has to bring
follows from who sends it:

- The token in the address is the secret, and no cookie counts: the page knows no user. So a page of somebody else that
  lets a browser send a form here gains nothing that its author, who would need the address, could not do alone.
- Programs have no CSRF token. A request that says that a browser made it (`Origin`, `Sec-Fetch-Site`) needs one all the
  same: a person answers by the button of this page, not by a form that looks like something else.
- A link with `verify` is for a program, and the signature decides alone. The page of such a link has no button.

`verify` gets the raw body and the headers before anything is parsed or stored. Refused, unknown and late requests leave
the link as it was. No response names the run, and no record of the log has the token: Django's own log of refused
requests, which would quote the path, is told that it was logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict, UnreadablePostError
from django.middleware.csrf import CsrfViewMiddleware
from django.shortcuts import render
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext_lazy
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from durable import runtime
from durable.codec.given_json import read_given
from durable.conf import conf
from durable.core.errors import TOKEN, PayloadError
from durable.core.links import LinkState, name_of
from durable.core.names.recorded_names import resolve_name
from durable.core.records import LinkRecord
from durable.hooks.signatures import reasons
from durable.inspection.humanize import visible
from durable.operations.links import answer_link, find_link, link_state

logger = logging.getLogger("durable.hooks")

_METHODS: Final = "GET, HEAD, OPTIONS, POST"
_FORM: Final = "application/x-www-form-urlencoded"
_CSRF: Final = "csrfmiddlewaretoken"
_MINUTE: Final = 60


class _Page(NamedTuple):
    """What a request gets: a status, a code for programs, and two sentences for people."""

    status: int
    code: str
    title: Any
    text: Any = ""


_ANSWERED: Final = _Page(200, "accepted", gettext_lazy("Thank you"), gettext_lazy("Your answer has been received."))
_UNKNOWN: Final = _Page(
    404, "unknown", gettext_lazy("This link does not exist"), gettext_lazy("Check that the address is complete.")
)
_GONE: Final = _Page(
    410,
    "gone",
    gettext_lazy("This link is not open any more"),
    gettext_lazy("It has expired, or an answer is no longer needed. Nothing was done."),
)
_REFUSED: Final = _Page(403, "refused", gettext_lazy("The answer was refused"))
_NO_CSRF: Final = _Page(
    403,
    "refused",
    gettext_lazy("The answer was refused"),
    gettext_lazy("Open the link again, and answer with the button on its page. The page needs a cookie."),
)
_TOO_MANY: Final = _Page(429, "too many", gettext_lazy("Too many requests"), gettext_lazy("Try again in a minute."))
_TOO_LARGE: Final = _Page(413, "too large", gettext_lazy("The answer is too large"))
_INVALID: Final = _Page(400, "invalid", gettext_lazy("The answer cannot be read"))
_NO_FILES: Final = _Page(415, "unsupported", gettext_lazy("Files cannot be received here"))
_METHOD: Final = _Page(405, "method", gettext_lazy("Only GET and POST are answered here"))
_BROKEN: Final = gettext_lazy("The answer could not be received. Nothing was done. Try again later.")


@csrf_exempt  # a program has no token; what a browser sends is checked below
@login_not_required
@sensitive_post_parameters()
@sensitive_variables()
def link(request: HttpRequest, token: str) -> HttpResponse:
    """Show the page of a link, or answer it."""
    try:
        response = _respond(request, token)
    except Exception:  # whatever the store or a verify raises: the report of a server error would quote the address
        logger.exception("a request to a link could not be answered; nothing was done")
        response = _broken(request)
    response["Referrer-Policy"] = "no-referrer"
    response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    response["X-Frame-Options"] = "DENY"
    patch_cache_control(response, no_store=True, private=True)
    response._has_been_logged = True  # type: ignore[attr-defined]  # read by django.utils.log.log_response
    return response


@sensitive_variables()
def _respond(request: HttpRequest, token: str) -> HttpResponse:
    if request.method == "OPTIONS":
        return HttpResponse(status=204, headers={"Allow": _METHODS})
    if request.method not in ("GET", "HEAD", "POST"):
        return _show(request, _METHOD, {"Allow": _METHODS})
    found = find_link(token)
    if found is None:
        is_much = is_too_often("unknown", request.META.get("REMOTE_ADDR") or "")
        return _show(request, _TOO_MANY if is_much else _UNKNOWN)
    if request.method == "POST":
        return _post(request, found)
    return _page_of(request, found)


def _page_of(request: HttpRequest, found: LinkRecord) -> HttpResponse:
    state = link_state(found)
    if state is LinkState.USED:
        return _show(request, _ANSWERED)
    if state is not LinkState.OPEN:
        return _show(request, _GONE)
    context = {
        "name": visible(name_of(found.location)),
        "expires_at": found.expires_at,
        "is_for_programs": bool(found.verify),
    }
    response = render(request, "durable/hooks/link.html", context)
    set_csrf_cookie(request, response)
    return response


@sensitive_variables()
def _post(request: HttpRequest, found: LinkRecord) -> HttpResponse:
    if _is_over(found.token_hash):
        return _show(request, _TOO_MANY)
    body = _body(request)
    if isinstance(body, _Page):
        return _refuse(request, found, body, str(body.title))
    if found.verify:
        try:
            problem = _problem(found, body, request.headers)
        except Exception:
            logger.exception(
                'run %s: an answer of the link "%s" was not looked at: %s raised an error. The link stays open',
                found.run_id,
                found.location,
                found.verify,
                extra={"run_id": found.run_id, "location": found.location},
            )
            return _broken(request)
        if problem is not None:
            return _refuse(request, found, _REFUSED, problem)
    elif _is_of_browser(request, body) and not has_csrf_token(request):
        return _refuse(request, found, _NO_CSRF, "it came from a browser without the token of the page")
    value = _parsed(request, body)
    if isinstance(value, _Page):
        return _refuse(request, found, value, str(value.title))
    try:
        before = answer_link(found, value)
    except PayloadError as error:
        return _refuse(request, found, _INVALID, str(error))
    return _show(request, _ANSWERED if before in (LinkState.OPEN, LinkState.USED) else _GONE)


def _refuse(request: HttpRequest, found: LinkRecord, page: _Page, why: str) -> HttpResponse:
    """Answer and log a request that was refused; the link is as it was."""
    is_too_often("refused", found.token_hash)
    logger.warning(
        'run %s: an answer of the link "%s" was refused: %s',
        found.run_id,
        found.location,
        why,
        extra={"run_id": found.run_id, "location": found.location},
    )
    return _show(request, page)


# -- the body


def _body(request: HttpRequest) -> bytes | _Page:
    """Return the raw body; a page if it is too large or the connection broke."""
    try:
        length = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return _INVALID
    if length > conf.LINK_BODY_BYTES:
        return _TOO_LARGE
    try:
        body: bytes = request._body if hasattr(request, "_body") else request.read(conf.LINK_BODY_BYTES + 1)
    except UnreadablePostError:
        return _INVALID
    if len(body) > conf.LINK_BODY_BYTES:
        return _TOO_LARGE
    request._body = body  # as Django does: the check of the CSRF token reads it as a form
    return body


def _parsed(request: HttpRequest, body: bytes) -> Any:
    """Return the value of a body by its content type; a page if it is none."""
    kind = (request.content_type or "").lower()
    charset = (request.content_params or {}).get("charset", "utf-8")
    try:
        if kind == "application/json" or kind.endswith("+json"):
            return read_given(body)
        if kind == _FORM:
            return _form(QueryDict(body, encoding=charset))
        if kind.startswith("multipart/"):
            return _NO_FILES
        return body.decode(charset) if kind.startswith("text/") else body
    except (ValueError, LookupError, RecursionError, SuspiciousOperation):
        return _INVALID


def _form(fields: QueryDict) -> dict[str, Any]:
    """Return the fields of a form by name: a text, or a list of texts for a field that comes several times."""
    return {name: each if len(each) > 1 else each[0] for name, each in fields.lists() if name != _CSRF and each}


# -- who may answer


def _problem(found: LinkRecord, body: bytes, headers: Mapping[str, str]) -> str | None:
    """Return why `verify` refuses the request; None if it accepts it. Raises what the import or the call raises."""
    verify: Callable[[bytes, Mapping[str, str]], object] = resolve_name(found.verify)
    with reasons() as why, _carried(found.run_id):
        try:
            answer = verify(body, headers)
        except PermissionDenied as error:
            return f"{found.verify} says: {error}"
    if answer is True:
        return None
    if answer is False and why:
        return f"{found.verify} does not accept it: {'; '.join(why)}"
    advice = "" if answer is False else f"; it has to return True or False, and returned {type(answer).__name__}"
    return f"{found.verify} does not accept it{advice}"


def _carried(run_id: str) -> AbstractContextManager[None]:
    """Return the context manager in which what travels with the run is in force, which may be whose secret it is."""
    run = runtime.current().store.get(run_id) if conf.CARRY else None
    if run is None or run.carried is None:
        return nullcontext()
    from durable import carriers  # few projects need it

    return carriers.restored(run)


def _is_of_browser(request: HttpRequest, body: bytes) -> bool:
    is_form = request.content_type == _FORM and f"{_CSRF}=".encode() in body
    return "Origin" in request.headers or "Sec-Fetch-Site" in request.headers or is_form


class _Csrf(CsrfViewMiddleware):
    """Django's check, which answers with the reason of a refusal."""

    def _reject(self, _request: HttpRequest, reason: str) -> Any:
        return reason


def has_csrf_token(request: HttpRequest) -> bool:
    """Return whether the request has the token of the page; Django's own check would log the address."""
    check = _Csrf(_nothing)
    try:
        if request.headers.get("Origin") == "null" and request.headers.get("Sec-Fetch-Site") in (None, "same-origin"):
            # a browser says so of its own page if that sends no referrer; the token decides
            request.META["HTTP_ORIGIN"] = f"{request.scheme}://{request.get_host()}"
        check.process_request(request)
        return check.process_view(request, _nothing, (), {}) is None
    except SuspiciousOperation:  # a foreign host, or more fields than the project allows
        return False


def set_csrf_cookie(request: HttpRequest, response: HttpResponse) -> None:
    """Set the cookie of a page with a form, where the project's middleware does not."""
    _Csrf(_nothing).process_response(request, response)


def _nothing(_request: HttpRequest) -> HttpResponse:
    return HttpResponse()


# -- how often


def is_too_often(kind: str, of: str) -> bool:
    """Count a request of this kind within a minute, in Django's cache. Return whether there are too many."""
    if not conf.LINK_REFUSALS:
        return False
    try:
        key = _counter(kind, of)
        cache.add(key, 0, timeout=_MINUTE)
        return cache.incr(key) > conf.LINK_REFUSALS
    except Exception:  # noqa: BLE001  # a cache that is away closes no link
        return False


def _is_over(token_hash: str) -> bool:
    """Return whether too many answers of this link were refused within a minute."""
    try:
        return bool(conf.LINK_REFUSALS) and (cache.get(_counter("refused", token_hash)) or 0) > conf.LINK_REFUSALS
    except Exception:  # noqa: BLE001  # as above
        return False


def _counter(kind: str, of: str) -> str:
    minute = int(runtime.current().now().timestamp()) // _MINUTE
    return f"durable.link.{kind}.{of.replace(':', '-')}.{minute}"


# -- the answer


def _show(request: HttpRequest, page: _Page, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Answer a person with a page, and a program with JSON."""
    more = {**(headers or {}), **({"Retry-After": str(_MINUTE)} if page.status == 429 else {})}
    if request.method == "POST" and not _is_of_person(request):
        body = {"status": page.code} if page.status == 200 else {"status": page.code, "title": str(page.title)}
        return JsonResponse(body, status=page.status, headers=more)
    context = {"title": page.title, "text": page.text}
    response = render(request, "durable/hooks/answer.html", context, status=page.status)
    for name, value in more.items():
        response[name] = value
    return response


def _broken(request: HttpRequest) -> HttpResponse:
    """Answer without a template: one may be what is broken."""
    if request.method == "POST" and not _is_of_person(request):
        return JsonResponse({"status": "error", "title": str(_BROKEN)}, status=500)
    return HttpResponse(f"{_BROKEN}\n", status=500, content_type="text/plain; charset=utf-8")


def _is_of_person(request: HttpRequest) -> bool:
    return "text/html" in request.headers.get("Accept", "")


# -- tests of workflows


def answer_in_test(url: str, body: bytes | str, headers: Mapping[str, str]) -> HttpResponse:
    """Answer a link by its address without a server. Raises ValueError for what is not an address of a link."""
    found = TOKEN.search(url)
    if found is None:
        raise ValueError(f"{url[:200]!r} is not an address of a link: give the url of ctx.link(...)")
    given = {name: value for name, value in headers.items() if name.lower() != "content-type"}
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    from django.test import RequestFactory

    raw = body.encode() if isinstance(body, str) else body
    request = RequestFactory(headers=given).generic("POST", urlsplit(url).path, raw, content_type=kind, secure=True)
    return link(request, found.group())
