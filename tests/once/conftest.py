"""The harness of the engine's tests, for steps whose second call would do harm."""

from tests.core.conftest import h

__all__ = ["h"]
