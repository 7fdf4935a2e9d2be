"""The tokens of links and their addresses.

A token is derived from 256 random bits, which the database has, with `SECRET_KEY`, which it has not: a copy of the
database contains no address that works, and each pass of a run has the same address. `SECRET_KEY_FALLBACKS` derive what
was opened before a rotation. The outside is recognized by the hash of the token alone, so that an address that was
given away works whatever becomes of the key.

Must not look into the database, except that the host may come from the sites framework.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.urls import NoReverseMatch, get_script_prefix, reverse
from django.utils.crypto import salted_hmac

from durable.conf import conf
from durable.core.errors import TOKEN_PREFIX
from durable.core.links import Address

#: The name of the URL of a link, in `durable.hooks.urls`.
URL_NAME: Final = "durable-link"
NO_HOST: Final = (
    'links need the address at which the project is reached from outside: set DURABLE["BASE_URL"] to one such as '
    '"https://shop.example", or install django.contrib.sites and set SITE_ID'
)
NO_URLS: Final = 'links need their URLs: add path("durable/", include("durable.hooks.urls")) to the URLs of the project'

_SALT: Final = "durable.links"
_MARK: Final = "TOKEN"
_TEST_HOST: Final = "https://testserver"


def new_link(run_id: str) -> dict[str, str]:
    """Return the data of a new link: its "id", its "run", and the "nonce" and "key" that its token is derived from.

    The "key" says with which of the keys; nobody can compute the key, or a token, from it.
    """
    nonce = secrets.token_hex(32)
    return {"id": secrets.token_hex(8), "run": run_id, "nonce": nonce, "key": _key_id(settings.SECRET_KEY, nonce)}


def token_of(run_id: str, data: Mapping[str, Any]) -> str | None:
    """Return the token of a link of this run; None if it is another run's, incomplete, or of a key that is gone."""
    nonce, key_id = data.get("nonce"), data.get("key")
    if data.get("run") != run_id or not nonce or not key_id:
        return None
    for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        if _key_id(key, nonce) == key_id:
            return derived(key, f"{run_id}\0{data['id']}\0{nonce}")
    return None


def hash_of(token: str) -> str:
    """Return the hash by which the store knows a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _key_id(key: str | bytes, nonce: str) -> str:
    return salted_hmac(f"{_SALT}.key", nonce, secret=key, algorithm="sha256").hexdigest()[:16]


def derived(key: str | bytes, value: str) -> str:
    """Return the token that a key derives from a value."""
    digest = salted_hmac(_SALT, value.encode(errors="surrogatepass"), secret=key, algorithm="sha256").digest()
    return TOKEN_PREFIX + urlsafe_b64encode(digest).decode().rstrip("=")


def address(*, in_test: bool = False) -> Address:
    """Return the address of links; its `problem` if the settings or the URLs lack something.

    `BASE_URL` may end with a path; that stands for the script prefix. A test of workflows needs neither settings nor
    URLs: with `in_test`, stand-ins replace what is missing.
    """
    base = base_url() or (_TEST_HOST if in_test else "")
    if not base:
        return Address(problem=NO_HOST)
    try:
        path = reverse(URL_NAME, args=[_MARK])
    except NoReverseMatch:
        if not in_test:
            return Address(problem=NO_URLS)
        path = f"/durable/links/{_MARK}/"
    if urlsplit(base).path:
        path = "/" + path.removeprefix(get_script_prefix())
    before, _, behind = path.partition(_MARK)
    return Address(before=f"{base}{before}", behind=behind)


def base_url() -> str:
    """Return the address of the project without a slash at its end; "" if nothing names it."""
    if conf.BASE_URL:
        return conf.BASE_URL.rstrip("/")
    if not apps.is_installed("django.contrib.sites") or not getattr(settings, "SITE_ID", None):
        return ""
    from django.contrib.sites.models import Site

    try:
        domain = Site.objects.get_current().domain
    except Site.DoesNotExist:
        return ""
    return f"{'http' if settings.DEBUG else 'https'}://{domain}"
