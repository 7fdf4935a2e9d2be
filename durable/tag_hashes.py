"""Tags that are kept as an HMAC: `DURABLE["TAGS"] = {"email": "hashed"}`.

Owns which tags are hashed, with which keys, and which names suggest personal data. `SECRET_KEY` hashes, and the
`SECRET_KEY_FALLBACKS` still find what was hashed before. The same name and value give the same hash, so that runs are
found by it. A reader of the database learns which runs have the same value, and with the key too can try values.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from django.conf import settings
from django.utils.crypto import salted_hmac

from durable.conf import conf
from durable.core.tags import HASHED, TagValue, check_tag_name, tag_text

logger = logging.getLogger("durable")

#: The values of `DURABLE["TAGS"]`. "clear" means that everybody who sees the run may read the value.
KINDS: Final = ("hashed", "clear")
#: The advice about a tag that suggests personal data.
HOW_TO_KEEP: Final = 'Set DURABLE["TAGS"] = {{"{name}": "hashed"}}, which still finds runs by it, or "clear" if all who see runs may read it.'

_SALT: Final = "durable.tags"
_PERSONAL: Final = frozenset(
    {
        *(
            "address",
            "birthday",
            "birthdate",
            "card",
            "dob",
            "email",
            "firstname",
            "fullname",
            "iban",
            "ip",
            "lastname",
        ),
        *("mail", "mobile", "name", "passport", "password", "phone", "secret", "ssn", "street", "surname", "telephone"),
        *("token", "username"),
    }
)
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_told: set[str] = set()  # names that this process has warned about
_MOST_TOLD: Final = 100  # the most names: over REST, a user may give ever new ones


def stored_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the stored form of tags, given as values by name.

    Logs, once for each of the first such names, a name that suggests personal data and is stored in clear although the
    project has not allowed that.
    """
    for name in tags:
        if len(_told) < _MOST_TOLD and name not in _told and name not in conf.TAGS and tells_of_people(name):
            _told.add(name)
            logger.warning('the values of the tag "%s" are kept in clear. %s', name, HOW_TO_KEEP.format(name=name))
    return {name: _hashed(name, text, settings.SECRET_KEY) if is_hashed(name) else text for name, text in tags.items()}


def sought(name: str, value: TagValue) -> list[str]:
    """Return the stored forms of a value by which runs are found: one, or one for each key of a hashed tag.

    Raises TypeError and ValueError for an invalid name or value.
    """
    text = tag_text(check_tag_name(name), value)
    if not is_hashed(name):
        return [text]
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return list(dict.fromkeys(_hashed(name, text, key) for key in keys))


def tells_of_people(name: str) -> bool:
    """Return True if the name of a tag has a word such as "email", which suggests personal or secret values."""
    return any(each.lower() in _PERSONAL for each in _WORD.findall(name))


def is_hashed(name: str) -> bool:
    """Return whether the values of this tag are kept as their hashes."""
    return conf.TAGS.get(name) == "hashed"


def _hashed(name: str, text: str, key: str | bytes) -> str:
    value = f"{name}\0{text}".encode(errors="surrogatepass")  # no name has NUL
    return HASHED + salted_hmac(_SALT, value, secret=key, algorithm="sha256").hexdigest()
