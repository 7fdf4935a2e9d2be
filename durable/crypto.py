"""An encrypting codec, `pip install durable[crypto]`: `DURABLE = {"CODEC": "durable.crypto.FernetCodec"}`.

Owns encryption of recorded text at rest, with Fernet (AES-128-CBC and HMAC-SHA256, authenticated) from `cryptography`.
Must not know the recorded values: the codec that it wraps does. Run ids, locations, names of queues, states and the
messages and tracebacks of errors are not payloads and are not encrypted.

Keys rotate: the first one encrypts, all of them decrypt. Put a new key first. Remove an old key when no run that was
recorded under it is needed any more. Make a key with `cryptography.fernet.Fernet.generate_key()`.

The same value encrypts to another text each time: compare values, never texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from durable.codec import Codec, JsonCodec
from durable.core.errors import PayloadError

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

__all__ = ["FernetCodec"]

# A Fernet token starts with its version, 0x80, in base64 after the seven zero bytes of any time before the year 2106.
_TOKEN_START = "gAAAAA"  # noqa: S105 - not a secret


class FernetCodec:
    """Encrypt what `inner` encodes, by default a `JsonCodec` with the limit that `DURABLE["MAX_PAYLOAD_BYTES"]` sets.

    `keys` are URL-safe base64 keys of 32 bytes, as text or bytes; the first one encrypts. Without the argument, the
    keys are `settings.DURABLE["ENCRYPTION_KEYS"]`, read at the first use and again when that setting changes. With
    `read_plain=True`, `decode` also accepts text that was recorded before encryption was turned on; anyone who can
    write to the database can then forge such text.

    Raises ImportError without the extra, `ImproperlyConfigured` or ValueError for keys that are missing or malformed,
    from the setting or the argument. The limit of `inner` applies to the text before encryption, which makes the text a
    third longer.
    """

    def __init__(
        self,
        inner: Codec | None = None,
        keys: Sequence[str | bytes] | None = None,
        *,
        read_plain: bool = False,
    ) -> None:
        _import_fernet()
        self.inner: Codec = _default_inner() if inner is None else inner
        self.read_plain = read_plain
        self._given = None if keys is None else _checked(keys)
        # Keys and cipher in one attribute, so that a thread never sees one without the other.
        self._cipher: tuple[tuple[bytes, ...], MultiFernet] | None = None
        if self._given is not None:
            self._fernet()

    def encode(self, value: object, *, what: str = "value") -> str:
        """Return `value` as a Fernet token. Raises PayloadError as `inner` does."""
        text = self.inner.encode(value, what=what)
        return self._fernet().encrypt(text.encode("utf-8")).decode("ascii")

    def decode(self, text: str, *, what: str = "value") -> Any:
        """Return the value in the token. Raises PayloadError for text that no key decrypts, and as `inner` does."""
        from cryptography.fernet import InvalidToken

        if type(text) is not str or not text.startswith(_TOKEN_START):
            if self.read_plain:
                return self.inner.decode(text, what=what)
            raise PayloadError(
                what,
                "$",
                "it is not encrypted, and this codec reads encrypted text only",
                "if it was recorded before encryption was turned on, use FernetCodec(read_plain=True) until such runs "
                "are gone",
                "read",
            )
        try:
            plain = self._fernet().decrypt(text.encode("utf-8", "surrogatepass")).decode("utf-8")
        except (InvalidToken, UnicodeDecodeError) as error:
            raise PayloadError(
                what,
                "$",
                "none of the keys decrypts it: it was encrypted with another key, or altered",
                'put the key that it was encrypted with back into DURABLE["ENCRYPTION_KEYS"], after the first',
                "read",
            ) from error
        return self.inner.decode(plain, what=what)

    def __repr__(self) -> str:
        return f"FernetCodec({self.inner!r})"  # the keys stay out of logs

    def _fernet(self) -> MultiFernet:
        keys = self._given if self._given is not None else _configured()
        if self._cipher is None or self._cipher[0] != keys:
            self._cipher = (keys, _cipher(keys))
        return self._cipher[1]


def _import_fernet() -> Any:
    try:
        from cryptography import fernet
    except ImportError as error:
        raise ImportError(
            "FernetCodec needs the package cryptography, which is not installed: pip install 'durable[crypto]'"
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


def _default_inner() -> Codec:
    from django.conf import settings

    if not settings.configured:
        return JsonCodec()
    from durable.conf import conf

    return JsonCodec(max_bytes=conf.MAX_PAYLOAD_BYTES)
