"""The fixtures of the engine's tests, for the drivers'."""

from tests.core.conftest import flavour, h

__all__ = ["flavour", "h"]
