"""The address of a link, over HTTP: who acts, what is refused, and what nobody gets to see."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.test import AsyncClient, Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from django.utils.formats import date_format

from durable import Context, workflow
from durable.conf import conf
from durable.core.errors import TOKEN
from durable.hooks.signatures import github, stripe
from durable.inspection.export import exported
from durable.models import Link, QueueMessage, Run
from durable.testing import Harness
from tests.support.waiting import at_once, patiently

pytestmark = pytest.mark.django_db(transaction=True)

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
given: list[str] = []
seen: list[tuple[bytes, str]] = []
signature = github("secret")
payments = stripe(["whsec_old", "whsec_new"])


def signed(body: bytes) -> dict[str, str]:
    import hmac

    return {"X-Hub-Signature-256": f"sha256={hmac.new(b'secret', body, hashlib.sha256).hexdigest()}"}


def looks(body: bytes, headers: Mapping[str, str]) -> bool:
    seen.append((body, headers.get("x-hub-signature-256", "")))
    return True


def denies(_body: bytes, _headers: Mapping[str, str]) -> bool:
    raise PermissionDenied("not today")


def breaks(_body: bytes, _headers: Mapping[str, str]) -> bool:
    raise OSError("the vault is away")


@workflow(name="tests.hooks.order")
def order(ctx: Context, name: str = "paid", verify: str | None = None, timeout: str | None = None) -> Any:
    paid = ctx.link(name, verify=verify, timeout=timeout)
    ctx.step("ask the bank", given.append, paid.url)
    return paid.wait("the bank's answer")


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    given.clear()
    seen.clear()
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def h() -> Iterator[Harness]:
    with override_settings(DURABLE={"BASE_URL": "https://testserver"}), Harness(store="database") as harness:
        yield harness


def opened(h: Harness, **arguments: Any) -> tuple[Any, str]:
    """Return a run that waits, and the path of its link."""
    run = h.start(order, **arguments)
    h.settle()
    assert given, h.peek(run)
    assert given[-1].startswith("https://testserver/durable/links/dlk_")
    return run, given[-1].removeprefix("https://testserver")


def link_of(run: Any) -> Link:
    return Link.objects.get(run=run.id)


def nothing_happened(run: Any) -> bool:
    return not QueueMessage.objects.filter(run=run.id).exists() and link_of(run).used_at is None


def of_hooks(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == "durable.hooks"]


# -- what acts, and what does not


def test_a_program_answers_by_a_post(h: Harness) -> None:
    run, path = opened(h)
    answer = Client().post(path, b'{"paid": [1, 2.5, null]}', content_type=JSON)
    assert (answer.status_code, answer.json()) == (200, {"status": "accepted"})
    h.settle()
    assert run.output == {"paid": [1, 2.5, None]}


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "BREW"])
def test_no_other_method_acts(h: Harness, method: str) -> None:
    run, path = opened(h)
    for _ in range(3):
        answer = Client().generic(method, path, b"7", content_type=JSON)
        assert answer.status_code == {"GET": 200, "HEAD": 200, "OPTIONS": 204}.get(method, 405)
    assert method in ("GET", "HEAD") or answer["Allow"] == "GET, HEAD, OPTIONS, POST"
    h.settle()
    assert nothing_happened(run)
    assert run.state == "sleeping"


def test_a_person_answers_by_the_button_of_the_page(h: Harness) -> None:
    run, path = opened(h, name="Confirm <b>your</b> order & more ☂")
    browser = Client(enforce_csrf_checks=True)
    page = browser.get(path, secure=True)
    text = page.content.decode()
    assert "Confirm &lt;b&gt;your&lt;/b&gt; order &amp; more ☂" in text
    assert "<b>" not in text
    assert run.id not in text
    found = re.search('name="csrfmiddlewaretoken" value="([^"]+)"', text)
    assert found is not None
    # as browsers do whose page sends no referrer
    headers = {"Origin": "null", "Sec-Fetch-Site": "same-origin", "Accept": "text/html"}
    body = urlencode({"csrfmiddlewaretoken": found[1], "amount": "7", "colour": ["red", "blue"]}, doseq=True)
    answer = browser.post(path, body, content_type=FORM, secure=True, headers=headers)
    assert answer.status_code == 200
    assert b"Thank you" in answer.content
    h.settle()
    assert run.output == {"amount": "7", "colour": ["red", "blue"]}


def test_the_page_says_until_when_it_is_open_and_shows_what_reorders_its_name(h: Harness) -> None:
    _run, path = opened(h, name="pay \u202eevil", timeout="3 days")
    text = Client().get(path, secure=True).content.decode()
    assert r"<h1><bdi>pay \u202eevil</bdi></h1>" in text
    until = h.now + timedelta(days=3)
    assert f"Open until {date_format(until, 'DATETIME_FORMAT')} UTC</p>" in text


def test_a_form_of_another_page_does_not_act(h: Harness) -> None:
    run, path = opened(h)
    browser = Client(enforce_csrf_checks=True)
    browser.get(path, secure=True)
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-origin"},
    ):
        for body in (b"", b"a=b", b"csrfmiddlewaretoken=guessed"):
            assert browser.post(path, body, content_type=FORM, secure=True, headers=headers).status_code == 403
    assert browser.post(path, b"csrfmiddlewaretoken=guessed", content_type=FORM, secure=True).status_code == 403
    assert nothing_happened(run)
    assert Client(enforce_csrf_checks=True).post(path, b"a=b", content_type=FORM).status_code == 200, "a program"


def test_a_repeat_gets_the_same_answer_and_a_late_one_410(h: Harness) -> None:
    run, path = opened(h, timeout="1 hour")
    late_run, late = opened(h, timeout="1 hour")
    first = Client().post(path, b"1", content_type=JSON)
    h.settle()
    again = Client().post(path, b"2", content_type=JSON)
    assert (first.status_code, first.content) == (again.status_code, again.content)
    h.advance("1 hour")
    assert Client().post(late, b"1", content_type=JSON).status_code == 410, "before any worker has looked"
    assert Client().get(late).status_code == 410
    h.settle()
    assert Client().post(late, b"1", content_type=JSON).status_code == 410
    assert Client().post(path, b"3", content_type=JSON).content == first.content
    assert (run.output, late_run.state) == (1, "failed")
    assert QueueMessage.objects.count() == 1
    assert b"Thank you" in Client().get(path).content


def test_an_unknown_link_is_404_whatever_it_looks_like(h: Harness) -> None:
    _, path = opened(h)
    token = TOKEN.search(path)
    assert token is not None
    other = token.group()[:-1] + ("A" if token.group()[-1] != "A" else "B")
    hashed = hashlib.sha256(token.group().encode()).hexdigest()
    for each in (other, token.group()[:-1], token.group() + "x", "dlk_", "x", "☂", "%00", hashed, "dlk_" + "A" * 43):
        for method in ("GET", "POST"):
            answer = Client().generic(method, f"/durable/links/{each}/")
            assert answer.status_code == 404, each
            assert answer["Cache-Control"] == "no-store, private"


def test_the_search_of_a_guess_and_of_the_right_token_is_the_same_statement(
    h: Harness, django_assert_num_queries: Any
) -> None:
    _, path = opened(h)
    with django_assert_num_queries(1):
        Client().post("/durable/links/dlk_" + "A" * 43 + "/")
    with django_assert_num_queries(0):
        Client().post("/durable/links/nothing/")
    assert Client().get(path).status_code == 200


def test_of_two_answers_at_once_exactly_one_acts(h: Harness) -> None:
    for _ in range(5):
        run, path = opened(h)
        answers: list[tuple[int, bytes]] = []
        lock = threading.Lock()

        def post(number: int, path: str = path, answers: list[Any] = answers, lock: Any = lock) -> None:
            def once() -> None:
                answer = Client().post(path, str(number).encode(), content_type=JSON)
                if answer.status_code == 500:  # SQLite was locked
                    raise AssertionError
                with lock:
                    answers.append((answer.status_code, answer.content))

            patiently(once)

        at_once(post)
        assert set(answers) == {(200, b'{"status": "accepted"}')}
        assert QueueMessage.objects.filter(run=run.id).count() == 1
        h.settle()
        assert run.output in range(4)


def test_an_answer_beside_a_cancel_is_either_accepted_or_late(h: Harness) -> None:
    for _ in range(5):
        run, path = opened(h)
        answers: list[int] = []

        def act(number: int, run: Any = run, path: str = path, answers: list[int] = answers) -> None:
            if number:
                patiently(lambda: run.cancel("beside"))
            else:
                patiently(lambda: answers.append(Client().post(path, b"7", content_type=JSON).status_code))

        at_once(act, threads=2)
        h.settle()
        is_used = link_of(run).used_at is not None
        assert answers == ([200] if is_used else [410])
        assert QueueMessage.objects.filter(run=run.id).exists() == is_used


def test_it_answers_in_an_event_loop(h: Harness) -> None:
    run, path = opened(h)
    assert async_to_sync(AsyncClient().get)(path).status_code == 200
    answer = async_to_sync(AsyncClient().post)(path, b"7", content_type=JSON)
    assert answer.status_code == 200
    h.settle()
    assert run.output == 7


# -- signatures


def test_verify_sees_the_raw_body_and_the_headers(h: Harness) -> None:
    run, path = opened(h, verify=f"{__name__}.looks")
    body = b'{ "a":1,\n"a": 2 }\xff'
    answer = Client().post(path, body, content_type="application/octet-stream", headers={"X-Hub-Signature-256": "x"})
    assert answer.status_code == 200
    assert seen == [(body, "x")]
    h.settle()
    assert run.output == body


def test_a_wrong_signature_changes_nothing_and_a_right_one_acts(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    run, path = opened(h, verify=f"{__name__}.signature")
    for headers in ({}, signed(b"other"), {"X-Hub-Signature-256": "sha1="}):
        answer = Client().post(path, b"7", content_type=JSON, headers=headers)
        assert answer.status_code == 403
        assert answer.json() == {"status": "refused", "title": "The answer was refused"}, "and not why"
    assert nothing_happened(run)
    assert [each.getMessage().partition(" does not accept it: ")[::2] for each in of_hooks(caplog)] == [
        (f'run {run.id}: an answer of the link "paid" was refused: {__name__}:signature', why)
        for why in (
            "GitHub: there is no header X-Hub-Signature-256",
            "GitHub: the signature does not match: another secret, or not the body that was signed",
            "GitHub: the header X-Hub-Signature-256 has no sha256",
        )
    ]
    browser = {"Origin": "https://api.github.com", **signed(b"7")}
    assert Client(enforce_csrf_checks=True).post(path, b"7", content_type=JSON, headers=browser).status_code == 200
    h.settle()
    assert run.output == 7
    assert Client().post(path, b"7", content_type=JSON).status_code == 403, "a repeat is signed too"


def test_a_refused_body_is_not_parsed(h: Harness) -> None:
    run, path = opened(h, verify=f"{__name__}.signature")
    assert Client().post(path, b"{", content_type=JSON).status_code == 403
    assert Client().post(path, b"{", content_type=JSON, headers=signed(b"{")).status_code == 400
    assert nothing_happened(run)


@pytest.mark.parametrize(("verify", "status"), [("denies", 403), ("breaks", 500)])
def test_a_verify_that_raises_accepts_nothing(
    h: Harness, caplog: pytest.LogCaptureFixture, verify: str, status: int
) -> None:
    run, path = opened(h, verify=f"{__name__}.{verify}")
    answer = Client().post(path, b"7", content_type=JSON)
    assert answer.status_code == status
    assert answer.json()["status"] == ("refused" if status == 403 else "error")
    assert nothing_happened(run)
    (record,) = of_hooks(caplog)
    assert record.getMessage().startswith(f'run {run.id}: an answer of the link "paid" was ')
    assert (record.run_id, record.location) == (run.id, "paid")  # type: ignore[attr-defined]
    page = Client().post(path, b"7", content_type=JSON, headers={"Accept": "text/html"})
    assert (page.status_code, page["Content-Type"].partition(";")[0]) == (
        (403, "text/html") if status == 403 else (500, "text/plain")
    )
    assert ("not today" if status == 403 else "the vault is away") in caplog.text
    assert path.split("/")[-2] not in caplog.text


def test_the_page_of_a_signed_link_has_no_button(h: Harness) -> None:
    _, path = opened(h, verify=f"{__name__}.signature")
    page = Client().get(path).content.decode()
    assert "<form" not in page
    assert "signed messages" in page


# -- bodies


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        ("application/json", b'"caf\xc3\xa9"', "café"),
        ("application/vnd.api+json; charset=utf-8", b"[1]", [1]),
        ("APPLICATION/JSON", b"null", None),
        ("application/x-www-form-urlencoded", b"a=1&b=2&b=3&c=", {"a": "1", "b": ["2", "3"], "c": ""}),
        ("text/plain", "ünï ☂".encode(), "ünï ☂"),
        ("text/plain; charset=latin-1", b"\xfc", "ü"),
        ("application/octet-stream", b"\x00\xff", b"\x00\xff"),
        ("image/png", b"png", b"png"),
        ("", b"", b""),
        ("nonsense", b"x", b"x"),
    ],
)
def test_the_body_is_read_by_its_content_type(h: Harness, kind: str, body: bytes, value: Any) -> None:
    run, path = opened(h)
    assert Client().generic("POST", path, body, content_type=kind).status_code == 200
    h.settle()
    assert run.output == value


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{", 400),
        ("application/json", b"NaN", 400),
        ("application/json", b"1e400", 400),
        ("application/json", b"\xff", 400),
        ("application/json", b"[" * 100_000, 400),
        ("application/json", b"1" * 5_000, 400),
        ("text/plain", b"\xff", 400),
        ("text/plain; charset=nothing", b"x", 400),
        ("application/x-www-form-urlencoded", b"&".join(b"a=1" for _ in range(2_000)), 400),
        ("multipart/form-data; boundary=x", b"--x--", 415),
    ],
)
def test_a_body_that_cannot_be_read_leaves_the_link_open(h: Harness, kind: str, body: bytes, status: int) -> None:
    run, path = opened(h)
    assert Client().generic("POST", path, body, content_type=kind).status_code == status
    assert nothing_happened(run)
    assert Client().post(path, b"7", content_type=JSON).status_code == 200


def test_a_large_body_is_413_before_it_is_read(h: Harness) -> None:
    run, path = opened(h)
    most = conf.LINK_BODY_BYTES
    assert Client().generic("POST", path, b"x" * (most + 1)).status_code == 413
    lying = Client().generic("POST", path, b"x", CONTENT_LENGTH=str(10**12))
    assert lying.status_code == 413
    assert Client().generic("POST", path, b"x", CONTENT_LENGTH="many").status_code == 400
    assert nothing_happened(run)
    assert Client().generic("POST", path, b"x" * most).status_code == 200
    h.settle()
    assert len(run.output) == most


def test_the_limit_of_a_body_is_a_setting(h: Harness) -> None:
    _, path = opened(h)
    with override_settings(DURABLE={"BASE_URL": "https://testserver", "LINK_BODY_BYTES": 3}):
        assert Client().generic("POST", path, b"1234").status_code == 413
        assert Client().generic("POST", path, b"123").status_code == 200


# -- too often


def test_refusals_of_one_link_are_throttled_and_no_other_link(h: Harness) -> None:
    with override_settings(DURABLE={"BASE_URL": "https://testserver", "LINK_REFUSALS": 3}):
        _, path = opened(h, verify=f"{__name__}.signature")
        _, other = opened(h)
        found = [Client().post(path, b"7", content_type=JSON).status_code for _ in range(6)]
        assert found == [403] * 4 + [429] * 2
        late = Client().post(path, b"7", content_type=JSON, headers=signed(b"7"))
        assert (late.status_code, late["Retry-After"]) == (429, "60")
        assert Client().post(other, b"7", content_type=JSON).status_code == 200
        h.advance(61)
        assert Client().post(path, b"7", content_type=JSON, headers=signed(b"7")).status_code == 200


def test_guesses_are_throttled_and_links_that_exist_are_not(h: Harness) -> None:
    with override_settings(DURABLE={"BASE_URL": "https://testserver", "LINK_REFUSALS": 3}):
        _, path = opened(h)
        found = [Client().post(f"/durable/links/dlk_{'A' * 42}{n}/").status_code for n in range(6)]
        assert found == [404] * 3 + [429] * 3
        assert Client().post(path, b"7", content_type=JSON).status_code == 200


@override_settings(
    CACHES={"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:1"}}
)
def test_a_cache_that_is_away_closes_no_link(h: Harness) -> None:
    _, path = opened(h, verify=f"{__name__}.signature")
    assert Client().post(path, b"7", content_type=JSON).status_code == 403
    assert Client().post(path, b"7", content_type=JSON, headers=signed(b"7")).status_code == 200


# -- what nobody gets to see


def test_each_answer_keeps_the_address_to_itself(h: Harness) -> None:
    _, path = opened(h)
    for method, kind in (
        ("GET", ""),
        ("HEAD", ""),
        ("OPTIONS", ""),
        ("PUT", ""),
        ("POST", "multipart/x"),
        ("POST", JSON),
    ):
        answer = Client().generic(method, path, b"7", content_type=kind)
        assert answer["Referrer-Policy"] == "no-referrer", method
        assert "no-store" in answer["Cache-Control"]
        assert "noindex" in answer["X-Robots-Tag"]
        assert answer["X-Frame-Options"] == "DENY"


@override_settings(DEBUG=True)
def test_no_log_and_no_error_page_has_the_token(
    h: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    _, path = opened(h, verify=f"{__name__}.signature", timeout="1 hour")
    token = path.split("/")[-2]
    client = Client(raise_request_exception=False)
    caplog.clear()
    client.post(path, b"{", content_type=JSON)
    client.post(path, b"{", content_type=JSON, headers=signed(b"{"))
    client.put(path)
    client.get(path)
    pages = [client.post(path[:-2] + "/", b"7", content_type=JSON).content]
    monkeypatch.setattr("durable.hooks.links.answer_link", lambda *_args: 1 / 0)
    pages.append(client.post(path, b"7", content_type=JSON, headers=signed(b"7")).content)
    h.advance("2 hours")
    pages.append(client.get(path).content)
    assert "ZeroDivisionError" in caplog.text
    assert token not in caplog.text
    assert not any(token.encode() in each for each in pages)


@pytest.mark.parametrize("behind", ["/extra", "/)", "/a/b/", ")", "./", ""])
def test_no_log_has_an_address_that_was_copied_wrongly(
    h: Harness, caplog: pytest.LogCaptureFixture, behind: str
) -> None:
    caplog.set_level(logging.DEBUG)
    run, path = opened(h)
    caplog.clear()
    with override_settings(APPEND_SLASH=False):
        answer = Client().post(f"{path.removesuffix('/')}{behind}", b"7", content_type=JSON)
    assert answer["Referrer-Policy"] == "no-referrer"
    assert path.split("/")[-2] not in caplog.text
    assert answer.status_code == (404 if behind else 200)
    assert nothing_happened(run) == bool(behind)


def test_a_dump_of_the_database_has_no_address(h: Harness) -> None:
    run, path = opened(h, timeout="1 hour")
    token = path.split("/")[-2]
    dump: list[str] = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')
            dump += [repr(row) for row in cursor.fetchall()]
    text = "\n".join(dump)
    assert run.id in text
    assert hashlib.sha256(token.encode()).hexdigest() in text
    assert token not in text
    assert token[4:24] not in text
    stolen = set(re.findall("[A-Za-z0-9_-]{16,}", text))
    for each in stolen:
        for guess in (each, f"dlk_{each}", f"dlk_{each[:43]}"):
            if TOKEN.fullmatch(guess):
                assert Client().post(f"/durable/links/{guess}/").status_code == 404


def test_the_rows_go_with_their_run(h: Harness) -> None:
    run, path = opened(h)
    run.cancel("no more")
    Run.objects.get(pk=run.id).delete()
    assert not Link.objects.exists()
    assert Client().post(path, b"7", content_type=JSON).status_code == 404


def test_the_page_is_translated(h: Harness) -> None:
    _, path = opened(h, timeout="1 hour")
    with translation.override("de"):
        page = Client().get(path, headers={"Accept-Language": "de"}).content.decode()
    assert 'lang="de"' in page
    assert "Bestätigen" in page


def test_json_for_programs_and_pages_for_people(h: Harness) -> None:
    _, path = opened(h, timeout="1 hour")
    h.advance("2 hours")
    assert json.loads(Client().post(path, b"7", content_type=JSON).content)["status"] == "gone"
    page = Client().post(path, b"7", content_type=JSON, headers={"Accept": "text/html,*/*"})
    assert page.status_code == 410
    assert b"<h1>" in page.content


@workflow(name="tests.hooks.several")
def several(ctx: Context, number: int) -> None:
    for place in range(number):
        ctx.link(f"link {place}")
    ctx.queue.next("go on")


def test_histories_read_all_links_of_a_page_at_once(h: Harness, admin_client: Client) -> None:
    """However many links a run has: its history over REST, its export, its page."""
    counts = []
    for number in (1, 7):
        run = h.start(several, number)
        h.settle()
        row = Run.objects.get(pk=run.id)
        with CaptureQueriesContext(connection) as listed:
            entries = admin_client.get(f"/api/runs/{run.id}/entries").json()["results"]
        assert [each["data"]["state"] for each in entries if each["kind"] == "link"] == ["open"] * number
        with CaptureQueriesContext(connection) as written:
            data = exported(row, with_payloads=True)
        assert [each["data"]["state"] for each in data["entries"] if each["kind"] == "link"] == ["open"] * number
        counts.append((len(listed), len(written)))
    assert counts[0] == counts[1]
