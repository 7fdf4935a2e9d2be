"""The text by which a value of a tag is compared, what no tag can be, and tags that are kept as an HMAC."""

from __future__ import annotations

import enum
import logging
import os
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection
from django.test import override_settings

from durable import Context, tag_hashes, workflow
from durable.checks import code
from durable.checks.code import without_code
from durable.core.tags import HASHED, check_tags, tag_text
from durable.models import Entry, Run, RunTag
from durable.runtime import Runtime
from durable.tag_hashes import stored_tags, tells_of_people
from tests.support.stores import passed, settle

MOMENT = datetime(2026, 11, 24, 9, 30, tzinfo=UTC)


class Stage(str, enum.Enum):  # noqa: UP042  # as Django's TextChoices
    PAID = "paid"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("acme", "acme"),
        (" a=b:c ", " a=b:c "),
        ("👩‍🚀 ß\u0301", "👩‍🚀 ß\u0301"),
        ("\x00\ud800\x1a", "\x00\ud800\x1a"),
        ("x" * 200, "x" * 200),
        (Stage.PAID, "paid"),
        ("42", "42"),
        (42, "42"),
        (42.0, "42"),
        (Decimal("42.00"), "42"),
        (Level.HIGH, "3"),
        (-7, "-7"),
        (0, "0"),
        (-0.0, "0"),
        (Decimal("0E+9999"), "0"),
        (0.1, "0.1"),
        (Decimal("0.10"), "0.1"),
        (1e22, "1" + "0" * 22),
        (1e-7, "0.0000001"),
        (Decimal("1E+3"), "1000"),
        (10**199, "1" + "0" * 199),
        (100, "100"),
        (True, "true"),
        (False, "false"),
        (MOMENT, "2026-11-24T09:30:00Z"),
        (MOMENT.astimezone(timezone(timedelta(hours=5, minutes=30))), "2026-11-24T09:30:00Z"),
        (MOMENT + timedelta(microseconds=1), "2026-11-24T09:30:00.000001Z"),
        (date(2026, 11, 24), "2026-11-24"),
    ],
)
def test_a_value_has_one_text(value: Any, text: str) -> None:
    found = tag_text("t", value)
    assert found == text
    assert type(found) is str
    assert tag_text("t", found) == found


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        ("", ValueError, "leave the tag out for none"),
        ("x" * 201, ValueError, "has 201 characters"),
        (float("nan"), ValueError, "not a number"),
        (Decimal("sNaN"), ValueError, "not a number"),
        (float("-inf"), ValueError, "not a number"),
        (1e300, ValueError, "200"),
        (10**200, ValueError, "201 characters"),
        pytest.param(10**5000, ValueError, "more than 200 digits", id="5001 digits"),
        (Decimal("1E+999999"), ValueError, "more than 200 digits"),
        (Decimal("1E-999999"), ValueError, "more than 200 digits"),
        (1e-300, ValueError, "more than 200 digits"),
        (datetime(2026, 1, 1), ValueError, "no time zone"),  # noqa: DTZ001
        (
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
            ValueError,
            "before the year 1 or after the year 9999",
        ),
        (HASHED + "00", ValueError, "only hashed values do"),
        (None, TypeError, "not NoneType: leave the tag out for none"),
        (b"acme", TypeError, "not bytes"),
        (["a"], TypeError, "not list"),
        (1j, TypeError, "not complex"),
        (timedelta(1), TypeError, "not timedelta"),
    ],
)
def test_what_is_no_value_is_refused(value: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as refused:
        tag_text("sum", value)
    assert '"sum"' in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", ["tenant", "order-id", "Größe", "a.b/c", "x" * 200, "🎉"])
def test_what_is_a_name(name: str) -> None:
    assert check_tags({name: 1}) == {name: "1"}


@pytest.mark.parametrize("name", ["", "x" * 201, "a b", "a=b", "a:b", "a\nb", "\x00", "\ud800"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a tag's name is made of 1 to 200"):
        check_tags({name: 1})


def test_tags_are_a_dict_of_names() -> None:
    wrong: Any
    for wrong in ("tenant=acme", [("tenant", "acme")], {1: "acme"}, {"tenant"}):
        with pytest.raises(TypeError):
            check_tags(wrong)


def test_a_run_has_eight_tags_at_most() -> None:
    eight = {f"t{number}": number for number in range(8)}
    assert len(check_tags(eight)) == 8
    with pytest.raises(ValueError, match="at most 8 tags, and these are 9"):
        check_tags({**eight, "t8": 8})


# -- tags that are kept as an HMAC, and the names that should be


HASHES = override_settings(DURABLE={"TAGS": {"email": "hashed", "login": "hashed"}}, SECRET_KEY="k1")


@workflow(name="tests.tag_hashes.one")
def one(ctx: Context) -> None:
    ctx.step("one", lambda: 1)
    ctx.tag(login="ann")


def found(**tags: Any) -> list[str]:
    return list(Run.objects.tagged(**tags).values_list("id", flat=True))


@HASHES
def test_a_hashed_tag_is_found_and_stands_nowhere_in_clear(at: Runtime) -> None:
    run = one.using(tags={"email": "a@b.example", "tenant": "acme"}).start()
    other = one.using(tags={"email": "other@b.example", "login": "a@b.example"}).start()
    settle()
    assert found(email="a@b.example") == found(email="a@b.example", tenant="acme") == [run.id]
    assert found(login="ann") == [other.id, run.id]
    assert run.tags["email"].startswith(HASHED)
    assert run.tags["tenant"] == "acme"
    assert len({*run.tags.values(), *other.tags.values()}) == 4, "another name or value has another hash"
    recorded = str(list(Entry.objects.values_list("data", flat=True))) + str(list(RunTag.objects.values()))
    assert "acme" in recorded
    assert "b.example" not in recorded
    assert "'ann'" not in recorded
    with pytest.raises(ValueError, match="only hashed values do"):
        found(email=run.tags["email"])


@HASHES
def test_a_rotated_key_still_finds_what_was_hashed_before(at: Runtime) -> None:
    old = one.using(tags={"email": "a@b.example"}).start()
    with override_settings(SECRET_KEY="k2"):
        assert found(email="a@b.example") == []
    with override_settings(SECRET_KEY="k2", SECRET_KEY_FALLBACKS=["k1"]):
        new = one.using(tags={"email": "a@b.example"}).start()
        assert found(email="a@b.example") == [new.id, old.id]
        assert new.tags != old.tags
        passed(at, old.id)
        assert old.replay("one").tags["email"] == old.tags["email"], "a copy has the hash of its original"


def test_names_that_tell_of_people() -> None:
    told = ["email", "customer_email", "customerEmail", "EMAIL", "user-name", "IBAN", "shop.phone", "SSN"]
    assert [each for each in told if not tells_of_people(each)] == []
    plain = ["tenant", "order", "stage", "renamed", "emails_sent", "shipping", "filename2x", "Größe", "42"]
    assert [each for each in plain if tells_of_people(each)] == []


def test_a_start_warns_once_of_a_name_that_tells_of_people(
    at: Runtime, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tag_hashes, "_told", set())
    with caplog.at_level(logging.WARNING, logger="durable"):
        for _ in range(2):
            one.using(tags={"phone": 1, "tenant": 1}).start()
        with override_settings(DURABLE={"TAGS": {"iban": "clear", "ssn": "hashed"}}):
            one.using(tags={"iban": 1, "ssn": 1}).start()
    [said] = [each.getMessage() for each in caplog.records]
    assert 'the values of the tag "phone" are kept in clear' in said
    assert '{"phone": "hashed"}' in said
    assert connection.vendor


CODE = '''
from durable import workflow

@workflow
def ship(ctx, order):
    ctx.tag(stage="new", email="a")
    """ctx.tag(iban=1)"""

def view(request):
    ship.using(tags={"tenant": 1, "phone": 2, **more}).start(1)
    ship.using(id="x", tags=dict(ssn=3))
    other.tags(street=4)
    template.using(name="x")
    ctx.tag(**{"passport": 5}, **more)
'''


def warnings_of(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> list[tuple[str, str]]:
    monkeypatch.setattr(code, "_files", lambda: iter(paths))
    found = [each for each in run_checks(tags=["durable"]) if each.id == "durable.W090"]
    return [(each.msg, each.hint or "") for each in found]


def test_the_check_names_tags_that_tell_of_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "views.py"
    path.write_text(CODE, encoding="utf-8")
    broken = tmp_path / "broken.py"
    broken.write_text("def ctx.tag(:", encoding="utf-8")
    gone = tmp_path / "gone.py"
    said = warnings_of(monkeypatch, path, broken, gone)
    assert [message.partition(" is kept")[0] for message, _ in said] == [
        f'{path}:6: the value of the tag "email"',
        f'{path}:10: the value of the tag "phone"',
        f'{path}:11: the value of the tag "ssn"',
        f'{path}:14: the value of the tag "passport"',
    ]
    assert '{"email": "hashed"}' in said[0][1]
    with override_settings(DURABLE={"TAGS": {"phone": "hashed", "ssn": "clear"}}):
        assert len(warnings_of(monkeypatch, path)) == 2
    with without_code():
        assert warnings_of(monkeypatch, path) == []


def test_of_ever_new_names_the_first_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: set[str] = set()
    monkeypatch.setattr(tag_hashes, "_told", told)
    for number in range(300):
        stored_tags({f"name{number}": "x"})
    assert len(told) == len(caplog.records) == 100


def test_the_check_reads_the_apps_that_bring_workflows() -> None:
    files = {path.as_posix() for path in code._files()}
    assert any(each.endswith("project/shop/workflows.py") for each in files)
    assert any(each.endswith("project/shop/views.py") for each in files)
    assert not any(f"{os.sep}durable{os.sep}core" in each or "/durable/core" in each for each in files)


def test_the_check_leaves_out_tests_and_what_is_installed(tmp_path: Path) -> None:
    for each in ("views.py", "deep/er/jobs.py", "tests/test_a.py", "test_b.py", "migrations/0001.py", ".venv/x.py"):
        path = tmp_path / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "lib/site-packages").mkdir(parents=True)
    (tmp_path / "lib/site-packages/y.py").touch()
    found = {path.relative_to(tmp_path).as_posix() for path in code._code_of(tmp_path)}
    assert found == {"views.py", "deep/er/jobs.py"}


def test_no_tag_of_the_shop_tells_of_people() -> None:
    assert [each for each in run_checks(tags=["durable"]) if each.id == "durable.W090"] == []


@pytest.mark.parametrize("value", ["hashed", {"email": "md5"}, {"e mail": "hashed"}, {1: "hashed"}, {"email": True}])
def test_what_is_no_setting_is_refused(value: Any) -> None:
    with override_settings(DURABLE={"TAGS": value}):
        said = [each for each in run_checks(tags=["durable"]) if each.id == "durable.E003"]
    assert len(said) == 1
    assert '"hashed" or "clear"' in said[0].msg
