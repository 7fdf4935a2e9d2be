"""The innermost error in the text of a failure: joins, races and exhausted steps wrap the error that made them fail.

The text is what `durable.core.errors` makes of the errors: each wrapper begins with its own words. A text that does not
begin so, a redacted one for example, stays as it is.
"""

from __future__ import annotations

import re
from typing import Final

from durable.core.location import escape

_FORK: Final = re.compile(r"(?:JoinError: join failed|RaceError: all branches of the race failed): (?=branch \")")
_BRANCH: Final = re.compile(r'(?:^|; )branch "(.{1,128}?)": (?=[A-Za-z_][\w.]*)')
_LAST_ATTEMPT: Final = re.compile(r"StepExhaustedError: step .*? failed on its last attempt: ")


def innermost_error(location: str, text: str) -> tuple[str, str]:
    """Return where a run failed, as precisely as it is known, and the error that was raised there.

    `location` is a fork or what failed inside it: the error is that of the branch on its way, of the first failed
    branch if it ends at the fork. Then the branch's name is added to the location.
    """
    names = location.split("/") if location else []
    depth = 0
    while fork := _FORK.match(text):
        inside = text[fork.end() :]
        branches = list(_BRANCH.finditer(inside))
        if not branches:
            break
        on_way = [each for each in branches if escape(each[1]) in names[depth:]]
        chosen = (on_way or branches)[0]
        following = branches[branches.index(chosen) + 1 :]
        is_last = not following or _FORK.match(inside, chosen.end()) is not None  # a fork's branches are its own
        text = inside[chosen.end() :] if is_last else inside[chosen.end() : following[0].start()]
        name = escape(chosen[1])
        if not on_way:
            names.append(name)
        depth = names.index(name, depth) + 1
    return "/".join(names), _LAST_ATTEMPT.sub("", text, count=1) if _LAST_ATTEMPT.match(text) else text
