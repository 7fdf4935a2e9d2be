"""A router for django-ninja (`durable-django[ninja]`): runs, lists and operators' verbs in a project's own API.

    api = NinjaAPI()
    api.add_router("/durable", router(auth=...))

Generated from what REST and the command line are generated from: the lists of `durable.listings`, the verbs on runs and
those of `durable.operations.catalogue`, and the options of a start. So an answer is that of REST, and the OpenAPI
document of the project's API describes it. Who may do what is decided as over REST: by the permissions of the app
durable, `API_RUNS` and `API_WORKFLOWS`.

Owns the pydantic models and the operations that are made of those declarations. Holds no verb and no list of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, JsonResponse
from django.utils.dateparse import parse_datetime
from ninja import Router, Schema
from ninja.params.functions import Body, Query
from ninja.security import django_auth
from pydantic import AfterValidator, AwareDatetime, ConfigDict, Field, StrictBool, create_model

from durable import operations
from durable.codec.given_json import read_given
from durable.core.clock import to_utc
from durable.core.duration import seconds
from durable.core.ids import MAX_ID, MAX_REASON, check_id
from durable.inspection.humanize import sentence
from durable.inspection.reading import from_replica, reading
from durable.inspection.run_facts import checked_tags, read_tag
from durable.listings import events, history, operators, people, restored, runs, schedules, work
from durable.listings.access import (
    actor_of,
    admit,
    is_signed_in,
    may,
    refuse_schedules_if_limited,
    seen_by,
    seen_of,
    startable,
    visible_run,
)
from durable.listings.answers import acting_for, answer_of, perform
from durable.listings.history import MessageReference
from durable.listings.listing import MOST_LISTED, Filter, Listing
from durable.listings.problems import CONTENT_TYPE, TITLES, ProblemError, problem_of
from durable.listings.runs import RunDetail, RunReference, seen_runs
from durable.listings.shapes import Field as ShapeField
from durable.listings.shapes import Shape, data_of, fields_of
from durable.listings.starts import check_queue_served, made, reference_of, start_asked
from durable.operations import options
from durable.operations.audit import acting_as
from durable.operations.catalogue import SCHEDULE, VERBS
from durable.operations.options import Option
from durable.operations.start_options import START_OPTIONS
from durable.operations.verbs import RUN, RUN_VERBS, Verb

__all__ = ["router"]

LISTINGS: Final = (
    *(runs.RUNS, runs.CHILDREN, history.ENTRIES, history.LOGS, history.VALUES, history.MESSAGES),
    work.RUNNING_OF_RUN,
    *(work.CAUSES, work.RUNNING, work.QUEUES, work.LIMITS, work.RATES, work.WORKERS),
    *(schedules.SCHEDULES, operators.ACTIONS, restored.RESTORED, people.QUESTIONS),
    *(events.EVENTS, events.EVENT_WAITS),
)
#: Verbs whose options are not declared, but written by hand on each surface.
BY_HAND: Final = frozenset({"edit_schedule", "backfill_schedule"})
_REFUSALS: Final = (401, 403, 404, 409, 422, 429, 503)


class DurableProblem(Schema):
    """A problem document (RFC 9457)."""

    type: str = Field(description="`urn:durable:problem:` and the code.")
    title: str
    status: int
    detail: str
    instance: str
    code: Literal[*sorted(TITLES)]  # type: ignore[valid-type]  # made at run time


def router(*, auth: Any = django_auth) -> Router:
    """Return a router with durable's operations, for `NinjaAPI.add_router`.

    `auth` authenticates, as in all of django-ninja: by default a session of Django, with its check of CSRF. The actor
    is what it returns, if that is a user, and else `request.user`. Without the permission for an operation the answer
    is 403, whoever is authenticated. `None` leaves the authentication to the API.
    """
    given: dict[str, Any] = {} if auth is None else {"auth": auth}
    found = Router(tags=["durable"], **given)
    for listing in LISTINGS:
        _add_listing(found, listing)
    _add_runs(found)
    for verb in [*(each for each in RUN_VERBS.values() if each.over_rest), *VERBS]:
        if verb.action not in BY_HAND:
            _add_verb(found, verb)
    for listing in LISTINGS:
        if listing.missing:
            _add_one(found, listing)  # after the verbs, whose addresses begin as these
    return found


# -- operations


def _add(
    to: Router,
    method: str,
    path: str,
    act: Callable[..., tuple[int, Any]],
    *,
    operation_id: str,
    does: str,
    answers: dict[int, type[Schema]],
    **parameters: tuple[Any, Any],
) -> None:
    """Add an operation. `act(request, **values)` returns the status and JSON data; `parameters` are ninja's."""

    def view(request: HttpRequest, **values: Any) -> JsonResponse:
        return _answered(request, partial(act, request, **values))

    kinds = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in parameters.items()
    ]
    request = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=HttpRequest)
    signature: Any = inspect.Signature([request, *kinds])
    view.__signature__ = signature  # type: ignore[attr-defined]  # what ninja reads
    to.add_api_operation(
        path,
        [method],
        view,
        operation_id=f"durable_{operation_id}",
        summary=operation_id.replace("_", " ").capitalize(),
        description=inspect.cleandoc(does),
        response={**answers, **dict.fromkeys(_REFUSALS, DurableProblem)},
    )


def _answered(request: HttpRequest, act: Callable[[], tuple[int, Any]]) -> JsonResponse:
    """Answer as the authenticated user; a problem document for an error of durable. A defect propagates."""
    user: Any = getattr(request, "auth", None)
    if not hasattr(user, "has_perm"):
        user = getattr(request, "user", None) or AnonymousUser()
    request.user = user
    try:
        if not is_signed_in(request):
            raise ProblemError("not-authenticated", 401, "This needs an authenticated user.")
        _refuse_numbers(request)
        status, data = act()
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            raise
        document = problem.document(request.path)
        return _json(document, problem.status, content_type=CONTENT_TYPE, headers=problem.headers)
    return _json(data, status)


def _refuse_numbers(request: HttpRequest) -> None:
    """Raise ProblemError for numbers that JSON lacks, or that no float holds: ninja's parser takes them."""
    if request.content_type != "application/json" or not request.body:
        return
    try:
        read_given(request.body)
    except ValueError as error:
        raise ProblemError("malformed-body", 400, f"The body is not JSON: {error}.") from None


def _json(data: Any, status: int, **more: Any) -> JsonResponse:
    answer = JsonResponse(data, status=status, safe=False, json_dumps_params={"allow_nan": False}, **more)
    answer.setdefault("Cache-Control", "no-store")
    return answer


def _require(request: HttpRequest, *permissions: str) -> None:
    if missing := [each for each in permissions if not may(request, each)]:
        names = " and ".join(f"durable.{each}" for each in missing)
        detail = f"This needs the permission {names}; ask an administrator to grant it to your user or to a group."
        raise ProblemError("permission-denied", 403, detail)


def _add_listing(to: Router, listing: Listing) -> None:
    model = _query_of(listing)
    query = {"query": (model, Query(...))} if model.model_fields else {}
    run: dict[str, tuple[Any, Any]] = {"run_id": (str, inspect.Parameter.empty)} if listing.of_run else {}

    def read(request: HttpRequest, query: Schema | None = None, run_id: str | None = None) -> tuple[int, Any]:
        _require(request, *listing.reads_with)
        if listing is schedules.SCHEDULES:
            refuse_schedules_if_limited()
        asked = _asked(request, query or model(), listing)
        if asked.get("payloads"):
            _require(request, "view_payload")
        with _read(is_list=not listing.of_run):
            if run_id is not None:
                asked["run"] = visible_run(request, run_id)
            seen = seen_of(request)
            page = listing.read(seen, **asked)
            return 200, data_of(listing.page, page, page.seen or seen)

    path = f"/runs/{{run_id}}/{listing.path}" if listing.of_run else f"/{listing.path}"
    _add(
        to,
        "GET",
        path,
        read,
        operation_id=f"list_{listing.name}",
        does=listing.over_rest,
        answers={200: _model_of(listing.page)},
        **run,
        **query,
    )


def _add_one(to: Router, listing: Listing) -> None:
    def read(request: HttpRequest, name: str) -> tuple[int, Any]:
        _require(request, *listing.reads_with)
        with _read(is_list=False):
            seen = seen_of(request)
            if (found := listing.find(seen, name)) is None:
                raise ProblemError("not-found", 404, listing.missing.format(name=name[:MAX_ID]))
            return 200, data_of(listing.item, found, seen)

    _add(
        to,
        "GET",
        f"/{listing.path}/{{path:name}}",
        read,
        operation_id=f"get_{listing.name.removesuffix('s')}",
        does=listing.one_over_rest,
        answers={200: _model_of(listing.item)},
        name=(str, inspect.Parameter.empty),
    )


@contextmanager
def _read(*, is_list: bool) -> Iterator[None]:
    """Read the database for people in this block, a list from a replica if there is one."""
    with from_replica(wanted=is_list), reading():
        yield


def _add_runs(to: Router) -> None:
    expand = _query("DurableRunQuery", expand=(list[Literal["input", "output"]], Field(default=[])))
    start = _body(
        "DurableStart",
        "The workflow to start, its arguments, and the options of the start.",
        *START_OPTIONS,
        workflow=(Annotated[str, Field(max_length=MAX_ID)], ...),
        args=(list[Any], Field(default=[])),
        kwargs=(dict[str, Any], Field(default={})),
    )
    send = _body(
        "DurableSend",
        "A message. With an `id` it is sent once.",
        queue=(Annotated[str, Field(min_length=1, max_length=128)], ...),
        body=(Any, Field(default=None)),
        id=(Annotated[str, Field(min_length=1, max_length=MAX_ID)] | None, Field(default=None)),
    )

    def show(request: HttpRequest, run_id: str, query: Any) -> tuple[int, Any]:
        _require(request, "view_run", *(["view_payload"] if query.expand else []))
        _refuse_unknown(request, query)
        with reading():
            run = visible_run(request, run_id)
            return 200, data_of(RunDetail, run, seen_runs(seen_of(request), [run], expand=query.expand))

    def begin(request: HttpRequest, given: Schema) -> tuple[int, Any]:
        admit(request, "start", "")
        asked = {"args": [], "kwargs": {}, **_given(given)}
        workflow = startable(asked["workflow"])
        check_queue_served(asked.get("queue"))
        with acting_as(actor_of(request), reason=asked.get("reason", ""), sees=seen_by(request)):
            run = made(asked.get("id"), lambda: start_asked(workflow, asked))
        return 201 if run.is_new else 200, reference_of(run.id)

    def put(request: HttpRequest, run_id: str, given: Any) -> tuple[int, Any]:
        admit(request, "send", run_id)
        try:
            with acting_as(actor_of(request), reason=given.reason):
                sent = operations.send(run_id, given.queue, given.body, idempotency_id=given.id)
        except ValueError as error:
            raise ProblemError("arguments-refused", 422, sentence(error)) from None
        return 201 if sent.is_new else 200, {"id": sent.id, "run": run_id}

    path: dict[str, tuple[Any, Any]] = {"run_id": (str, inspect.Parameter.empty)}
    reference, message = _model_of(RunReference), _model_of(MessageReference)
    _add(
        to,
        "GET",
        "/runs/{run_id}",
        show,
        operation_id="get_run",
        does="Return the run. Its input and output, which need `durable.view_payload`, are included on request.",
        answers={200: _model_of(RunDetail)},
        **path,
        query=(expand, Query(...)),
    )
    _add(
        to,
        "POST",
        "/runs",
        begin,
        operation_id="start_run",
        does="""Start a run: 201. With an id that exists, return its run: 200, or 409 if its workflow or input differ.

        Needs `durable.start_run`.
        """,
        answers={200: reference, 201: reference},
        given=(start, Body(...)),
    )
    _add(
        to,
        "POST",
        "/runs/{run_id}/messages",
        put,
        operation_id="send_message",
        does="""Put a message into the run's inbox: 201.

        With an `id` that the run has seen: 200, or 409 if queue or body differ. Needs `durable.operate_run`.
        """,
        answers={200: message, 201: message},
        **path,
        given=(send, Body(...)),
    )


def _add_verb(to: Router, verb: Verb) -> None:
    of_run = verb.on is RUN

    def act(request: HttpRequest, given: Schema | None, **found: str) -> tuple[int, Any]:
        if verb.on is SCHEDULE:
            refuse_schedules_if_limited()
        [name] = found.values()
        admit(request, verb.action, name if of_run else "")
        asked = _given(given, *verb.options)
        with acting_for(request, verb, asked):
            return 200, perform(request, verb, name, asked)

    key, name = ("run_id", "{run_id}") if of_run else ("name", "{path:name}")
    _add(
        to,
        "POST",
        f"/{verb.on.path}/{name}/{verb.word}",
        act,
        operation_id=f"{verb.action}_run" if of_run else verb.action,
        does=verb.over_rest.format(needs=verb.needs),
        answers={200: _model_of(answer_of(verb).shape)},
        **{key: (str, inspect.Parameter.empty)},
        given=_body_of(verb),
    )


# -- models of requests


def _body_of(verb: Verb) -> tuple[Any, Any]:
    """Return the body of a verb. It may be left out if nothing in it is required."""
    model = _body(
        f"Durable{''.join(each.title() for each in verb.action.split('_'))}",
        "The options, and the reason.",
        *verb.options,
        revision=(
            Annotated[str, Field(max_length=MAX_ID)] | None,
            Field(default=None, description="As it was seen; what has changed since is left alone."),
        ),
    )
    if any(each.is_required for each in verb.options):
        return model, Body(...)
    return model | None, Body(None)


def _body(name: str, meaning: str, *asked: Option, **more: tuple[Any, Any]) -> type[Schema]:
    fields = dict(more)
    for each in asked:
        kind = _type_of(each)
        has_default = not each.is_required
        default: Any = each.default if has_default else ...
        if isinstance(each, options.Json):  # what is left out is not null, but not said
            default = None
        fields[each.name] = (kind | None if has_default else kind, Field(default=default, description=each.does))
    reason = (Annotated[str, Field(max_length=MAX_REASON)], Field(default="", description="For the audit log."))
    return _made(name, meaning, reason=reason, **fields)


def _query(name: str, **fields: tuple[Any, Any]) -> type[Schema]:
    return _made(name, "The query string.", **fields)


def _made(name: str, meaning: str, **fields: Any) -> type[Schema]:
    base = type("DurableBase", (Schema,), {"model_config": ConfigDict(extra="forbid"), "__module__": __name__})
    model: type[Schema] = create_model(name, __base__=base, __doc__=meaning, __module__=__name__, **fields)
    return model


def _given(given: Schema | None, *asked: Option) -> dict[str, Any]:
    """Return what was given, and the defaults of the options that have one."""
    values = {} if given is None else {name: getattr(given, name) for name in given.model_fields_set}
    defaults = {each.name: each.default for each in asked if not each.is_required and each.default is not None}
    return {**defaults, **values}


def _checked(check: Callable[[str], object], text: str) -> str:
    """Return the text if `check` accepts it. Raises ValueError."""
    try:
        check(text)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return text


def _length(given: float | str) -> float:
    try:
        return seconds(given, "a length of time")
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _deadline(given: float | str) -> float | datetime:
    moment = parse_datetime(given) if isinstance(given, str) else None
    return _length(given) if moment is None else _moment(moment)


def _moment(given: datetime) -> datetime:
    if given.tzinfo is None:
        raise ValueError("name the time zone: 2026-01-31T12:00:00Z")
    return to_utc(given)


_NUMBER_OR_TEXT: Final = (
    Annotated[float, Field(strict=True, allow_inf_nan=False)] | Annotated[str, Field(max_length=200)]
)
_OF_KINDS: Final[dict[type[Option], Any]] = {
    options.Flag: StrictBool,
    options.Id: Annotated[str, Field(min_length=1, max_length=MAX_ID), AfterValidator(partial(_checked, check_id))],
    options.Decimal: Annotated[float, Field(strict=True, allow_inf_nan=False)],
    options.Length: Annotated[_NUMBER_OR_TEXT, AfterValidator(_length)],
    options.Deadline: Annotated[_NUMBER_OR_TEXT, AfterValidator(_deadline)],
    options.Tags: dict[str, Any],
    options.Json: Any,
    options.Until: Annotated[AwareDatetime, AfterValidator(_moment)],
}


def _type_of(option: Option) -> Any:
    if isinstance(option, options.Number):
        return Annotated[int, Field(strict=True, ge=option.least, le=option.most)]
    if isinstance(option, options.OneOf):
        return Literal[*option.values]
    if (kind := _OF_KINDS.get(type(option))) is not None:
        return kind
    assert isinstance(option, options.Text)
    text: Any = Annotated[str, Field(min_length=option.shortest, max_length=option.longest)]
    return text if option.check is None else Annotated[text, AfterValidator(partial(_checked, option.check))]


def _query_of(listing: Listing) -> type[Schema]:
    fields: dict[str, tuple[Any, Any]] = {each.name: _of_filter(each) for each in listing.filters}
    if listing.is_paged:
        cursor = Field(default=None, max_length=1_200, description="The `next_cursor` of the page before.")
        limit = Field(default=50, ge=1, le=MOST_LISTED, description="How many at most.")
        fields |= {"cursor": (str | None, cursor), "limit": (int, limit)}
    return _query(f"Durable{''.join(each.title() for each in listing.name.split('_'))}Query", **fields)


def _of_filter(each: Filter) -> tuple[Any, Any]:
    said: dict[str, Any] = {"description": each.does or None}
    if each.kind is bool:
        return bool, Field(default=bool(each.default), **said)
    if each.kind is tuple:
        return list[str], Field(default=[], **said)
    kind: Any = Annotated[str, Field(max_length=each.longest)]
    if each.kind is datetime:
        kind = Annotated[AwareDatetime, AfterValidator(_moment)]
    elif each.kind is int:
        kind = Annotated[int, Field(ge=each.least, le=each.most)]
    elif each.is_id:
        kind = _OF_KINDS[options.Id]
    elif each.choices:
        kind = Literal[*each.choices]
    if each.several:
        return list[kind], Field(default=[], **said)
    return kind | None, Field(default=each.default, **said)


def _asked(request: HttpRequest, query: Schema, listing: Listing) -> dict[str, Any]:
    """Return the filters that were given, and the defaults of those that have one."""
    _refuse_unknown(request, query)
    values = {name: value for name, value in query if value is not None and value != []}
    for each in listing.filters:
        if each.name not in values:
            continue
        try:
            if each.kind is tuple:
                values[each.name] = checked_tags([read_tag(tag) for tag in values[each.name]])
            elif each.check is not None:
                each.check(values[each.name])
        except ValueError as error:
            raise ProblemError("invalid-request", 422, sentence(error)) from None
    return values


def _refuse_unknown(request: HttpRequest, query: Schema) -> None:
    names = type(query).model_fields
    if unknown := sorted(request.GET.keys() - names):
        known = ", ".join(names) or "none"
        detail = f'There is no name "{unknown[0][:MAX_ID]}" here; the names are {known}.'
        raise ProblemError("invalid-request", 422, detail)


# -- models of answers


def _model_of(shape: type[Shape]) -> type[Schema]:
    """Return the model of a shape, one for all its uses."""
    key: Any = shape
    return _model(key)


@cache
def _model(shape: Any) -> type[Schema]:
    fields: dict[str, Any] = {
        name: (_kind(kind, said), Field(description=said.help or None))
        for name, (kind, said) in fields_of(shape).items()
    }
    model: type[Schema] = create_model(
        f"Durable{shape.__name__}", __base__=Schema, __doc__=shape.__doc__, __module__=__name__, **fields
    )
    return model


def _kind(kind: Any, said: ShapeField) -> Any:
    if NoneType in get_args(kind):
        [inner] = [each for each in get_args(kind) if each is not NoneType]
        return _kind(inner, said) | None
    if get_origin(kind) is list:
        return list[_kind(get_args(kind)[0], said)]  # type: ignore[misc]  # made at run time
    if get_origin(kind) is dict:
        return dict[str, _kind(get_args(kind)[1], ShapeField())]  # type: ignore[misc]  # as above
    if isinstance(kind, type) and issubclass(kind, Shape):
        return _model_of(kind)
    if said.choices:
        return Literal[*said.choices]
    return kind
