"""The fixtures of the engine's tests, for steps of a database."""

from tests.core.conftest import flavour, h

__all__ = ["flavour", "h"]
