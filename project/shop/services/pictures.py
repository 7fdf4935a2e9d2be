"""The archive of cat pictures: a catalogue that knows the cutest ones, and the store that holds the files."""

from project.shop.services import line
from project.shop.services.models import Fault

__all__ = ["cutest", "fetch", "names"]

# From the cutest on.
_CATS = {
    "Mochi": "/ᐠ｡ꞈ｡ᐟ\\",
    "Biscuit": "(=^･ω･^=)",
    "Sir Pounce": "ฅ(•ㅅ•)ฅ",
    "Olive": "(^・x・^)",
}


def names(*, attempt: int = 1) -> list[str]:
    """The names of all cats, the cutest first."""
    with line.to(Fault.Service.PICTURES, attempt):
        return list(_CATS)


def cutest(rank: int = 1, *, attempt: int = 1) -> str:
    """The name of the cutest cat, or of the second cutest, and so on."""
    return names(attempt=attempt)[rank - 1]


def fetch(name: str, *, attempt: int = 1) -> str:
    """The picture of one cat."""
    with line.to(Fault.Service.PICTURES, attempt):
        return _CATS[name]
