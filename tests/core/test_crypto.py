"""The encrypting codec hides what it records, rotates keys, and reads nothing that was altered."""

from __future__ import annotations

import datetime as dt
import sys
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from durable.codec import Codec, JsonCodec
from durable.core.errors import PayloadError
from durable.crypto import FernetCodec

OLD, NEW, OTHER = (Fernet.generate_key().decode() for _ in range(3))
ENCRYPTED = FernetCodec(keys=[OLD]).encode({"a": 1})


def test_values_survive_and_do_not_show() -> None:
    codec = FernetCodec(keys=[OLD])
    value = {"card": "4242", "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "parts": (1, 2)}
    text = codec.encode(value)
    assert text.isascii()
    assert "4242" not in text
    assert codec.decode(text) == value
    assert isinstance(codec, Codec)


def test_keys_rotate() -> None:
    recorded_before = FernetCodec(keys=[OLD]).encode(1)
    rotated = FernetCodec(keys=[NEW, OLD.encode()])
    assert rotated.decode(recorded_before) == 1
    recorded_after = rotated.encode(2)
    assert FernetCodec(keys=[NEW]).decode(recorded_after) == 2
    with pytest.raises(PayloadError):
        FernetCodec(keys=[OLD]).decode(recorded_after)


def test_another_key_is_explained() -> None:
    text = FernetCodec(keys=[OLD]).encode("the secret")
    with pytest.raises(PayloadError) as caught:
        FernetCodec(keys=[OTHER]).decode(text, what="the input")
    assert caught.value.what == "the input"
    assert "ENCRYPTION_KEYS" in caught.value.advice
    assert OTHER not in str(caught.value)


def test_keys_come_from_the_settings_when_first_needed() -> None:
    codec = FernetCodec()
    with override_settings(DURABLE={"ENCRYPTION_KEYS": [OLD]}):
        text = codec.encode(1)
    with override_settings(DURABLE={"ENCRYPTION_KEYS": [NEW, OLD]}):
        assert codec.decode(text) == 1
    with override_settings(DURABLE={"ENCRYPTION_KEYS": [NEW]}), pytest.raises(PayloadError):
        codec.decode(text)


@pytest.mark.parametrize("durable", [{}, {"ENCRYPTION_KEYS": []}, {"ENCRYPTION_KEYS": OLD}, {"ENCRYPTION_KEYS": ["x"]}])
def test_settings_without_good_keys_are_refused(durable: dict[str, Any]) -> None:
    with override_settings(DURABLE=durable), pytest.raises(ImproperlyConfigured, match="ENCRYPTION_KEYS") as caught:
        FernetCodec().encode(1)
    assert OLD not in str(caught.value)


@pytest.mark.parametrize(
    "keys", [[], [OLD, "short"], OLD, ["\xe4" * 44], [5]], ids=["none", "short", "no list", "not base64", "no text"]
)
def test_bad_keys_are_refused_at_once(keys: Any) -> None:
    with pytest.raises(ValueError, match="encryption key"):
        FernetCodec(keys=keys)


def test_plain_text_is_read_only_on_request() -> None:
    plain = JsonCodec().encode({"a": (1,)})
    with pytest.raises(PayloadError, match="read_plain=True"):
        FernetCodec(keys=[OLD]).decode(plain)
    migrating = FernetCodec(keys=[OLD], read_plain=True)
    assert migrating.decode(plain) == {"a": (1,)}
    assert migrating.encode(1) != "1"
    with pytest.raises(PayloadError):
        migrating.decode(FernetCodec(keys=[OTHER]).encode(1))


def test_it_refuses_what_the_inner_codec_refuses() -> None:
    codec = FernetCodec(JsonCodec(max_bytes=5), [OLD])
    with pytest.raises(PayloadError, match="MAX_PAYLOAD_BYTES"):
        codec.encode("too long")
    with pytest.raises(PayloadError) as caught:
        codec.encode([object()], what="the input")
    assert (caught.value.what, caught.value.path) == ("the input", "$[0]")


def test_the_default_inner_codec_has_the_limit_of_the_settings() -> None:
    with override_settings(DURABLE={"MAX_PAYLOAD_BYTES": 5}):
        codec = FernetCodec(keys=[OLD])
    with pytest.raises(PayloadError, match="limit is 5"):
        codec.encode("too long")


def test_keys_stay_out_of_its_repr() -> None:
    assert OLD not in repr(FernetCodec(keys=[OLD]))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ImportError, match=r"durable-django\[crypto\]"):
        FernetCodec(keys=[OLD])


@settings(deadline=None)
@given(st.text() | st.text().map(lambda text: "gAAAAA" + text) | st.binary() | st.none())
def test_arbitrary_text_is_a_payload_error(text: Any) -> None:
    with pytest.raises(PayloadError):
        FernetCodec(keys=[OLD]).decode(text)


# The same text for all examples: what is drawn may depend on nothing else. Not its last characters: padding leaves bits
# of them without a meaning.
@settings(deadline=None)
@given(st.integers(0, len(ENCRYPTED) - 5), st.sampled_from("ABCxyz019-_"))
def test_altered_text_is_a_payload_error(at: int, other: str) -> None:
    assume(other != ENCRYPTED[at])
    with pytest.raises(PayloadError):
        FernetCodec(keys=[OLD]).decode(ENCRYPTED[:at] + other + ENCRYPTED[at + 1 :])
