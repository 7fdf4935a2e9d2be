"""Text of others in a page: characters that hide or reorder text are shown, and right-to-left text is isolated.

Ids, names, queues, messages and reasons come from elsewhere, and stand in sentences that `durable.inspection` makes. So
this is done once to each rendered page, after escaping, and no template can forget it. Values of attributes stay as
they are: forms send them back. The contents of text areas do too.
"""

from __future__ import annotations

import re
from typing import Final

#: Controls, marks that change the direction of text, line separators, and characters without a width.
_ALWAYS: Final = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
)
#: These, and characters that join letters or emoji where they do not.
_HIDDEN: Final = re.compile(f"[{_ALWAYS}]|(?<=[\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?=[\x00-\x7f]|$)")
_RIGHT_TO_LEFT: Final = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001efff"
#: Words written from right to left, with what stands between them.
_WORDS: Final = re.compile(f"[{_RIGHT_TO_LEFT}](?:[^<>&A-Za-z0-9]*?[{_RIGHT_TO_LEFT}])*")
#: One set of characters, and no alternatives: each page is searched for it.
_OF_INTEREST: Final = re.compile(f"[{_ALWAYS}\u200c\u200d{_RIGHT_TO_LEFT}]")
_TAG: Final = re.compile(r"(<[^>]*>)")
_NAME: Final = re.compile(r"</?([a-z]+)")
_RAW: Final = frozenset({"textarea", "script", "style"})
_TEXT_ONLY: Final = frozenset({"title", "option"})  # elements that can hold no other elements


def with_visible_text(html: str) -> str:
    """Return a page with the texts between its tags shown as the module says."""
    if html.isascii() or _OF_INTEREST.search(html) is None:
        return html
    parts = _TAG.split(html)  # texts, and tags at odd positions
    inside = ""
    for position, part in enumerate(parts):
        if position % 2:
            found = _NAME.match(part)
            inside = found[1] if found is not None and not part.startswith("</") else ""
        elif part and inside not in _RAW:
            parts[position] = _shown(part, isolates=inside not in _TEXT_ONLY)
    return "".join(parts)


def _shown(text: str, *, isolates: bool) -> str:
    text = _HIDDEN.sub(_number, text)
    return _WORDS.sub(r"<bdi>\g<0></bdi>", text) if isolates else text


def _number(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
