"""What the redaction hook hides can be had neither by search, nor by paging, nor in another form of the value."""

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import parse_qs
from uuid import UUID

import pytest
from django.core.management import call_command
from django.test import Client
from pydantic import BaseModel, Field
from pytest_django import Settings

from durable import get_run, runtime
from durable.admin.pages import etag_of
from durable.core.errors import ErrorInfo
from durable.core.places import Place
from durable.inspection.causes import failed_runs
from durable.inspection.payloads import LOOKED_THROUGH, payload
from durable.inspection.run_lanes import RunPage
from durable.inspection.runs import RunCriteria, list_runs, parse_search
from durable.inspection.selection import Filtered
from durable.models import QueueMessage, Run
from durable.operations import bulk
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import printed, text_of, url
from tests.admin.redaction import QUEUE

SECRET = "SECRETpw7731"
NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
FAILED = frozenset({"failed"})


@pytest.fixture
def cards(settings: Settings) -> None:
    settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide_cards"}


def fail(stage: Stage, id: str, message: str) -> Run:
    """A failed run whose error has this message; each is younger than the one before."""
    stage.advance(seconds=1)
    stage.start(flows.quick, id=id)
    Run.objects.filter(pk=id).update(state="failed", error=ErrorInfo("ValueError", message, "Traceback"))
    return Run.objects.get(pk=id)


@pytest.fixture
def _two_failed_alike(stage: Stage, cards: None) -> None:
    fail(stage, "one", f"card {SECRET} refused")
    fail(stage, "two", f"card {SECRET} refused")


def answers(text: str) -> list[RunPage]:
    """What a reader can ask of a list with this text, each with pages of one run."""
    filters = [
        RunCriteria(error_text=text),
        RunCriteria(error_text=text, states=FAILED),
        RunCriteria(error_text=text, states=frozenset({"failed", "completed"})),
        RunCriteria(error_text=text, workflow="tests.quick"),
        RunCriteria(error_text=text, id_prefix="o"),
        RunCriteria(error_text=text, id_prefix="t"),
        RunCriteria(error_text=text, queue="default"),
        RunCriteria(error_text=text, created_until=NOW.replace(year=2100)),
        parse_search(text),
    ]
    return [list_runs(each, limit=1) for each in filters]


@pytest.mark.usefixtures("_two_failed_alike")
class TestWhatIsHiddenCannotBeSearchedFor:
    def test_the_right_text_is_answered_like_a_wrong_one(self) -> None:
        right, wrong = answers(SECRET), answers("SECRETpw7732")
        assert [(page.runs, page.next_cursor, page.is_window) for page in right] == [
            (page.runs, page.next_cursor, page.is_window) for page in wrong
        ]

    def test_it_cannot_be_read_out_character_by_character(self) -> None:
        def finds(text: str) -> bool:
            page = list_runs(RunCriteria(error_text=text, states=FAILED), limit=1)
            return bool(page.runs or page.next_cursor)

        assert [each for each in string.ascii_letters + string.digits if finds("SECRET" + each)] == []

    def test_a_text_that_ends_in_what_is_hidden_tells_nothing(self) -> None:
        assert [page.runs for page in answers("card SECRETpw")] == [page.runs for page in answers("card SECRETpx")]

    def test_what_is_shown_is_found(self) -> None:
        page = list_runs(RunCriteria(error_text="CARD (hidden)"), limit=1)
        assert [run.id for run in page.runs] == ["two"]
        behind = list_runs(RunCriteria(error_text="CARD (hidden)"), limit=1, cursor=page.next_cursor)
        assert ([run.id for run in behind.runs], behind.next_cursor) == (["one"], None)
        assert [run.id for run in list_runs(RunCriteria(error_text="valueerror")).runs] == ["two", "one"]

    def test_a_bulk_by_error_finds_what_is_shown_alone(self) -> None:
        def eligible(text: str) -> Any:
            return bulk.eligible("recover", Filtered(RunCriteria(error_text=text, states=FAILED)))

        assert eligible(SECRET) == eligible("SECRETpw7732")
        assert eligible("refused").count == 2

    def test_nor_on_the_pages_of_the_admin(self, log_in: Callable[..., Client]) -> None:
        client = log_in("view_run")

        def page(text: str) -> str:
            shown = client.get("/admin/durable/run/", {"q": text, "state": "failed"}).content.decode()
            return re.sub(r'(?<=csrfmiddlewaretoken" value=")\w+', "", shown).replace(text, "TEXT")

        assert page(SECRET) == page("SECRETpw7732")
        assert "(hidden)" in client.get("/admin/durable/run/", {"q": "refused"}).content.decode()

    def test_nor_on_the_command_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        def output(text: str) -> str:
            call_command("durable", "list", "--error", text, "--limit", "1", "-o", "json")
            printed = capsys.readouterr()
            return (printed.out + printed.err).replace(text, "TEXT")

        assert output(SECRET) == output("SECRETpw7732")


def test_a_window_ends_where_it_would_without_the_text(stage: Stage, cards: None) -> None:
    template = fail(stage, "first", f"card {SECRET}")
    moments = [template.created_at + timedelta(seconds=number) for number in range(1, LOOKED_THROUGH + 50)]
    made = [replace_run(template, id=f"r-{number:04}", created_at=at) for number, at in enumerate(moments)]
    Run.objects.bulk_create(made)
    Run.objects.filter(pk="first").update(error=ErrorInfo("ValueError", "the oldest"))
    right, wrong = (list_runs(RunCriteria(error_text=text), limit=3) for text in (SECRET, "SECRETpx"))
    assert (right.runs, right.is_window, right.next_cursor) == ([], True, wrong.next_cursor)
    behind = list_runs(RunCriteria(error_text="the oldest"), limit=3, cursor=right.next_cursor)
    assert [run.id for run in behind.runs] == ["first"]


def replace_run(run: Run, **columns: Any) -> Run:
    made = {each.attname: getattr(run, each.attname) for each in Run._meta.concrete_fields}
    return Run(**made | columns)


def test_the_hook_is_given_whole_messages_where_failures_are_grouped(stage: Stage, cards: None) -> None:
    fail(stage, "cut", "x" * 370 + SECRET * 3)  # what is read for the groups ends within the hidden word
    fail(stage, "short", f"card {SECRET}")
    assert {run.id: run.message for run in failed_runs()} == {
        "cut": "(a long message: see the run)",
        "short": "card (hidden)",
    }


def test_an_etag_is_no_hash_that_a_reader_can_make(settings: Settings) -> None:
    before = etag_of(NOW, "run", SECRET)
    assert etag_of(NOW, "run", SECRET) == before
    settings.SECRET_KEY = "another"
    assert etag_of(NOW, "run", SECRET) != before


# -- every kind of value that the codec keeps


@dataclass
class Account:
    iban: str
    owner: str = "x"
    pin: str = field(default="PIN1", repr=False)


class Model(BaseModel):
    iban: str
    pin: str = Field(default="PIN1", repr=False)


class Pair(NamedTuple):
    iban: str
    owner: str = "x"


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Key:
    iban: str


IBAN = "DE02"
KINDS: Sequence[Any] = [
    {"iban": IBAN},
    Account(IBAN),
    Model(iban=IBAN),
    Pair(IBAN),
    [Account(IBAN)],
    (Account(IBAN), 1),
    {"a": {"b": [Model(iban=IBAN)]}},
    {"x": frozenset({Key(IBAN)})},
    {Key(IBAN): 1},
    {Pair(IBAN): Pair(IBAN)},
    {"x": {Pair(IBAN)}},
]


@pytest.fixture
def _ibans(settings: Settings) -> None:
    settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide_ibans"}


def shown(value: Any) -> Any:
    return payload("tests.quick", "input", runtime.current().codec.encode(value), Place("r", "input"))


@pytest.mark.usefixtures("_ibans")
class TestEveryKindOfValue:
    @pytest.mark.parametrize("value", KINDS, ids=lambda value: type(value).__name__)
    def test_a_hook_of_dicts_and_lists_hides_in_all_of_them(self, value: Any) -> None:
        text = str(shown(value))
        assert IBAN not in text
        assert "PIN1" not in text  # which its class does not show
        assert "(hidden)" in text

    def test_the_rest_is_shown_as_plain_data(self) -> None:
        assert shown([Account(IBAN), Pair(IBAN, "y"), {3, 1}, (1, 2)]) == [
            {"iban": "(hidden)", "owner": "x", "pin": "(hidden: its class does not show it)"},
            {"iban": "(hidden)", "owner": "y"},
            [1, 3],
            [1, 2],
        ]
        uuid = UUID(int=1)
        values = [Decimal("1.50"), uuid, NOW, date(2026, 1, 2), timedelta(seconds=3), Colour.RED, 2.5, None, True]
        assert shown(values) == [
            *("1.50", str(uuid), NOW.isoformat(), "2026-01-02", "0:00:03", "red", 2.5, None, True),
        ]
        assert shown({1: "a", 2.5: "b", None: "c"}) == {"1": "a", "2.5": "b", "None": "c"}

    def test_what_has_no_plain_form_is_hidden_with_what_is_in_it(self) -> None:
        assert shown([b"DE02", 1 + 2j]) == ["(hidden: the redaction hook did not replace it)"] * 2


def describe_bytes(workflow: str, field: str, value: Any) -> Any:
    """A hook that puts objects of its own in the place of what it does not know, and changes what it is given."""
    if isinstance(value, dict):
        args = value.setdefault("args", [])
        args[:] = [bytes(reversed(each)) if each == b"ab" else each for each in args]
        value["seen"] = Key("by the hook")
    return value


def test_what_the_hook_returns_in_its_place_is_shown(settings: Settings) -> None:
    settings.DURABLE = {**settings.DURABLE, "REDACT": f"{__name__}.describe_bytes"}
    value = shown({"args": [b"ab", b"cd"]})
    assert value == {
        "args": ["b'ba'", "(hidden: the redaction hook did not replace it)"],
        "seen": {"iban": "by the hook"},
    }


def test_a_value_that_cannot_be_read_tells_nothing_that_the_hook_hides(settings: Settings, stage: Stage) -> None:
    settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide_cards"}
    installed = replace(runtime.current(), codec=_Telling())
    runtime.activate(installed)
    try:
        assert payload("tests.quick", "input", SECRET, Place("r", "input")) == {
            "unreadable": "ValueError: cannot read (hidden)"
        }
    finally:
        runtime.deactivate(installed)


class _Telling:
    def encode(self, value: object, *, what: str = "value") -> str:
        return str(value)

    def decode(self, text: str, *, what: str = "value") -> Any:
        raise ValueError(f"cannot read {text}")


def test_the_queue_of_a_message_has_its_own_name(stage: Stage, operator: Client, settings: Settings) -> None:
    stage.start(flows.approve, id="run")
    get_run("run").send(QUEUE, SECRET)
    listed = unescape(text_of(operator.get(url("send", "run"))))
    assert QUEUE in {parse_qs(each)["queue"][0] for each in re.findall(r'href="\?(queue=[^"]+&copy=[^"]+)"', listed)}
    settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide_queue"}
    of = f"?of=message&id={QueueMessage.objects.get().pk}"
    parts = [url("change", "run") + f"?part={each}" for each in ("messages", "events")]
    for address in parts:
        assert QUEUE in text_of(operator.get(address)), address
    for address in (
        *parts,
        url("payload", "run") + of,
        url("raw", "run") + of,
        url("export", "run"),
        url("send", "run"),
    ):
        assert SECRET not in text_of(operator.get(address)), address
    for given in ([], ["--history", "--redact"]):
        assert SECRET not in printed("export", "run", *given), given
