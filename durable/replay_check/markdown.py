"""What a check of recorded runs has found, as the text of a comment on a pull request.

Names and values of runs are foreign: they stand in fenced blocks alone, where nothing in them is a mention, a link or
HTML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from durable.core.words import safe
from durable.inspection.humanize import plural
from durable.replay_check.findings import Report

#: The first line, by which the comment of an earlier check is found and replaced.
MARKER: Final = "<!-- durable replay-check -->"
_MOST: Final = 20  # lines of a block: a comment may be of 65,536 characters
_WIDEST: Final = 1_000  # characters of a line


def comment(went_on: Report, decided: Report | None = None) -> str:
    """Return the text. `went_on` is of runs that have to go on, `decided` of ended ones that were compared."""
    stopped = len(went_on.findings)
    goes_on = went_on.checked - stopped
    what = "open run" if decided is not None else "recorded run"
    parts = [MARKER, "### Recorded runs with this change"]
    if stopped:
        ends = f"the code of this change would stop {stopped:,}"
        parts.append(f"**{plural(went_on.checked, what)}: {goes_on:,} go on, {ends}.**")
    elif went_on.unchecked:
        parts.append(f"{plural(went_on.checked, what)}: those that could be checked go on with this change.")
    else:
        parts.append(f"{plural(went_on.checked, what)}: all go on with this change.")
    if went_on.unchecked:
        parts.append(f"**{plural(len(went_on.unchecked), what)} could not be checked.**")
    parts += _block([str(each) for each in went_on.groups])
    if decided is not None:
        others = sum(map(len, decided.decisions.values()))
        if others:
            parts.append(f"**{plural(decided.checked, 'ended run')}: it decides otherwise in {others:,}.**")
        else:
            parts.append(f"{plural(decided.checked, 'ended run')}: it decides as before in all that could be compared.")
        if decided.unchecked:
            parts.append(f"**{plural(len(decided.unchecked), 'ended run')} could not be compared.**")
        parts += _block(decided.sentences())
    if not all(each.is_complete for each in (went_on, decided) if each is not None):
        parts.append("The check was not completed: the numbers are of what was checked until then.")
    return "\n\n".join(parts) + "\n"


def _block(lines: Sequence[str]) -> list[str]:
    """Return a fenced block of the lines, which none of them can end; [] without lines."""
    if not lines:
        return []
    shown = [safe(each)[:_WIDEST] for each in lines[:_MOST]]
    if len(lines) > _MOST:
        shown.append(f"... and {len(lines) - _MOST:,} more lines: run `durable replay-check`")
    longest = max((len(found) for each in shown for found in re.findall("`+", each)), default=0)
    fence = "`" * max(3, longest + 1)
    return ["\n".join([f"{fence}text", *shown, fence])]
