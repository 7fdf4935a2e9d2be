"""What Python does first in a child process of a test, if this directory is in its `PYTHONPATH`.

Owns what makes the start of a child cheaper: a session starts hundreds. Must not change what durable or a project does.
"""

import gc
import sys
from importlib.util import find_spec
from types import ModuleType

# Imports make many objects and no cyclic garbage. At Python's own threshold, the collector takes a fifth of the start.
gc.set_threshold(200_000)
# redis-py imports the SDK where it is installed. Only tests that trace use it, in pytest's own process.
sys.modules["opentelemetry.sdk"] = None  # type: ignore[assignment]  # Python's way to say that there is none
# Nor the asynchronous half of redis-py, which comes with the other one. Of its modules, that one needs a few.
if (_redis := find_spec("redis")) is not None and _redis.submodule_search_locations:
    _asyncio = ModuleType("redis.asyncio")
    _asyncio.__path__ = [f"{each}/asyncio" for each in _redis.submodule_search_locations]
    sys.modules["redis.asyncio"] = _asyncio
