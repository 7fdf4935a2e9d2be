"""The writer: makes texts about products, word by word, as a language model does."""

import time
from collections.abc import Iterator

from django.conf import settings

__all__ = ["words_about"]

_TEXT = "{name}. Tested by nine cats, who slept on it, behind it and at last inside of its box. {name}: they approve."


def words_about(name: str) -> Iterator[str]:
    """Yield the words of a text, each a moment after the one before."""
    for word in _TEXT.format(name=name).split():
        time.sleep(settings.SHOP["SERVICE_LATENCY"] / 2)
        yield word
