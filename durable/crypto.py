"""An encrypting codec, `pip install "durable-django[crypto]"`: `DURABLE = {"CODEC": "durable.crypto.FernetCodec"}`.

Owns encryption of recorded text at rest, with Fernet (AES-128-CBC and HMAC-SHA256, authenticated) from `cryptography`.
Must not know the recorded values: the codec that it wraps does. Run ids, locations, names of queues, states and the
messages and tracebacks of errors are not payloads and are not encrypted.

Keys rotate: the first one encrypts, all of them decrypt. Put a new key first. Remove an old key when no run that was
recorded under it is needed any more. Make a key with `cryptography.fernet.Fernet.generate_key()`.

The same value encrypts to another text each time: compare values, never texts.

With `DURABLE["BIND_PAYLOADS"]` a token holds its place too, the run and the field that it was made for, and is read
nowhere else. "accept" still reads the tokens that have no place, "require" refuses them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from durable.codec import Codec, JsonCodec
from durable.codec.binding import without_limit
from durable.core.errors import PayloadError
from durable.core.places import Place

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

__all__ = ["BINDINGS", "FernetCodec"]

#: The values that `DURABLE["BIND_PAYLOADS"]` may have.
BINDINGS = ("off", "accept", "require")

# Precedes a place, which stands before the inner codec's text; that text has no NUL.
_PLACE_START = "\x00"

# A Fernet token starts with its version, 0x80, in base64 after the seven zero bytes of any time before the year 2106.
_TOKEN_START = "gAAAAA"  # noqa: S105 - not a secret


class FernetCodec:
    """Encrypt the text that `inner` encodes, by default a `JsonCodec` with the limit that
    `DURABLE["MAX_PAYLOAD_BYTES"]` sets.

    `keys` are URL-safe base64 keys of 32 bytes, as text or bytes; the first one encrypts. Without the argument, the
    keys are `settings.DURABLE["ENCRYPTION_KEYS"]`, read at the first use and again when that setting changes. With
    `read_plain=True`, `decode` also accepts text that was recorded before encryption was turned on; anyone who can
    write to the database can then forge such text.

    Raises ImportError without the extra, `ImproperlyConfigured` or ValueError for keys that are missing or malformed,
    from the setting or the argument. The limit of `inner` applies to the text before encryption, which makes the text a
    third longer.

    `bind` is one of `BINDINGS`. Without the argument, it is `settings.DURABLE["BIND_PAYLOADS"]`. Unless it is "off",
    durable passes the place of each value to the codec (`binds`).
    """

    def __init__(
        self,
        inner: Codec | None = None,
        keys: Sequence[str | bytes] | None = None,
        *,
        read_plain: bool = False,
        bind: str | None = None,
    ) -> None:
        if bind is not None and bind not in BINDINGS:
            raise ValueError(f"bind is one of {', '.join(BINDINGS)}, not {bind!r}")
        _import_fernet()
        self.inner: Codec = _default_inner() if inner is None else inner
        self.read_plain = read_plain
        self._bind = bind
        self._given = None if keys is None else _checked(keys)
        # Keys and cipher in one attribute, so that a thread never sees one without the other.
        self._cipher: tuple[tuple[bytes, ...], MultiFernet] | None = None
        if self._given is not None:
            self._fernet()

    @property
    def binds(self) -> bool:
        """Return True if values are bound to their places."""
        return self._binding() != "off"

    @property
    def unlimited(self) -> FernetCodec:
        """The same codec without the limit of `inner`."""
        same = copy(self)
        same.inner = without_limit(self.inner)
        return same

    def encode(self, value: object, *, what: str = "value", place: Place | None = None) -> str:
        """Return `value` as a Fernet token, which belongs to `place` if there is one.

        Raises PayloadError as `inner` does.
        """
        return self._encrypted(self.inner.encode(value, what=what), place)

    def decode(self, text: str, *, what: str = "value", place: Place | None = None) -> Any:
        """Return the value in the token.

        Raises PayloadError for text that none of the keys opens, for a token of another place than `place`, with
        "require" for one without a place, and as `inner` does. Without a place, the token's place is not checked.
        """
        belongs_to, plain = self._opened(text, what)
        if place is not None:
            self._check(belongs_to, place, what)
        return self.inner.decode(plain, what=what)

    def rebind(self, text: str, old: Place, new: Place, *, what: str = "value") -> str:
        """Return the token of `old` as a token of `new`, without decoding the value.

        Raises PayloadError for a token that must not be read at `old`. Text that none of the keys can decrypt stays
        unchanged: it cannot be read at `new` either.
        """
        try:
            belongs_to, plain = self._opened(text, what)
        except PayloadError:
            return text
        if belongs_to is None and not self.binds:
            return text
        self._check(belongs_to, old, what)
        return self._encrypted(plain, new if self.binds else None)

    def _check(self, belongs_to: str | None, place: Place, what: str) -> None:
        if belongs_to is None:
            if self._binding() == "require":
                raise PayloadError(
                    what,
                    "$",
                    'it is not bound to a run, and DURABLE["BIND_PAYLOADS"] is "require"',
                    'if it was recorded before values were bound, set BIND_PAYLOADS to "accept" until such runs are gone',
                    "read",
                )
        elif belongs_to != _text_of(place):
            of_run = f" of run {place.run_id!r}" if place.run_id else ""
            raise PayloadError(
                what,
                "$",
                f"it belongs to another row or field than the {place.field}{of_run}: it was moved or copied here",
                "look at who can write to the tables of durable, and put back what was recorded",
                "read",
            )

    def _encrypted(self, plain: str, place: Place | None) -> str:
        whole = plain if place is None else f"{_text_of(place)}{plain}"
        return self._fernet().encrypt(whole.encode("utf-8")).decode("ascii")

    def _opened(self, text: str, what: str) -> tuple[str | None, str]:
        """Return the place of the token's text (None without one), and the value's text."""
        from cryptography.fernet import InvalidToken

        if type(text) is not str or not text.startswith(_TOKEN_START):
            if self.read_plain:
                return None, text
            raise PayloadError(
                what,
                "$",
                "it is not encrypted, and this codec reads encrypted text only",
                "if it was recorded before encryption was turned on, use FernetCodec(read_plain=True) until such runs "
                "are gone",
                "read",
            )
        try:
            whole = self._fernet().decrypt(text.encode("utf-8", "surrogatepass")).decode("utf-8")
        except (InvalidToken, UnicodeDecodeError) as error:
            raise PayloadError(
                what,
                "$",
                "none of the keys decrypts it: it was encrypted with another key, or altered",
                'put the key that it was encrypted with back into DURABLE["ENCRYPTION_KEYS"], after the first',
                "read",
            ) from error
        if not whole.startswith(_PLACE_START):
            return None, whole
        place, newline, plain = whole.partition("\n")
        return place + newline, plain

    def _binding(self) -> str:
        return _configured_binding() if self._bind is None else self._bind

    def __repr__(self) -> str:
        return f"FernetCodec({self.inner!r})"  # the keys stay out of logs

    def _fernet(self) -> MultiFernet:
        keys = self._given if self._given is not None else _configured()
        if self._cipher is None or self._cipher[0] != keys:
            self._cipher = (keys, _cipher(keys))
        return self._cipher[1]


def _text_of(place: Place) -> str:
    """Return the prefix of a token's text for this place; no token of another place begins with it."""
    return f"{_PLACE_START}{json.dumps(place)}\n"


def _import_fernet() -> Any:
    try:
        from cryptography import fernet
    except ImportError as error:
        raise ImportError(
            "FernetCodec needs the package cryptography, which is not installed: pip install 'durable-django[crypto]'"
        ) from error
    return fernet


def _cipher(keys: tuple[bytes, ...]) -> MultiFernet:
    fernet = _import_fernet()
    made: MultiFernet = fernet.MultiFernet([fernet.Fernet(key) for key in keys])
    return made


def _checked(keys: object) -> tuple[bytes, ...]:
    """Return the keys as bytes. Raises ValueError, which never shows a key, for anything but a list of Fernet keys."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Sequence):
        raise ValueError(f"encryption keys are a list of keys, not {type(keys).__name__}")
    if not keys:
        raise ValueError("there are no encryption keys; make one with cryptography.fernet.Fernet.generate_key()")
    fernet = _import_fernet()
    checked: list[bytes] = []
    for number, key in enumerate(keys, start=1):
        try:
            raw = key.encode("ascii") if isinstance(key, str) else bytes(key)
            fernet.Fernet(raw)
        except (ValueError, TypeError):
            raise ValueError(
                f"encryption key {number} is not 32 bytes in URL-safe base64; make one with "
                "cryptography.fernet.Fernet.generate_key()"
            ) from None
        checked.append(raw)
    return tuple(checked)


def _configured() -> tuple[bytes, ...]:
    from django.core.exceptions import ImproperlyConfigured

    from durable.conf import conf

    keys = conf.ENCRYPTION_KEYS
    if not keys:
        raise ImproperlyConfigured(
            'FernetCodec found no keys: set DURABLE["ENCRYPTION_KEYS"] to a list of keys, the first of which encrypts; make '
            "one with cryptography.fernet.Fernet.generate_key()"
        )
    try:
        return _checked(keys)
    except ValueError as error:
        raise ImproperlyConfigured(f'DURABLE["ENCRYPTION_KEYS"]: {error}') from error


def _configured_binding() -> str:
    from django.conf import settings

    if not settings.configured:
        return "off"
    from durable.conf import conf

    if conf.BIND_PAYLOADS not in BINDINGS:
        from django.core.exceptions import ImproperlyConfigured

        raise ImproperlyConfigured(f'DURABLE["BIND_PAYLOADS"] is not one of {", ".join(BINDINGS)}')
    return conf.BIND_PAYLOADS


def _default_inner() -> Codec:
    from django.conf import settings

    if not settings.configured:
        return JsonCodec()
    from durable.conf import conf

    return JsonCodec(max_bytes=conf.MAX_PAYLOAD_BYTES)
