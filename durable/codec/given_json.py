"""JSON that people and programs outside give: read strictly.

Owns what is refused beside texts that are not JSON: numbers that JSON lacks, and those that no float holds, which
Python would read as infinity. What the codec has recorded is read in `values.py`.
"""

from __future__ import annotations

import json
from math import isinf
from typing import Any, Final, NoReturn

from durable.core.words import Sentence, gettext_noop

_SHOWN: Final = 30  # characters of a refused number


class NumberTooLargeError(ValueError):
    """The text has a number that no float holds."""


def read_given(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises ValueError, whose text may be a `Sentence`, and RecursionError. A number that is too large is a
    NumberTooLargeError; a text that is not JSON is mostly a `json.JSONDecodeError`.
    """
    return json.loads(text, parse_constant=_no_number, parse_float=_float)


def _no_number(name: str) -> NoReturn:
    raise ValueError(Sentence(gettext_noop("{text} is not a number that JSON has"), text=name))


def _float(digits: str) -> float:
    value = float(digits)
    if isinf(value):
        shown = digits if len(digits) <= _SHOWN else f"{digits[:_SHOWN]}..."
        text = gettext_noop("the number {text} is too large: numbers are read up to 1.8e308; send it as text")
        raise NumberTooLargeError(Sentence(text, text=shown))
    return value
