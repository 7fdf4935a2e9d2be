"""The read side: what the admin, REST and the command line show, defined once for all three.

Reads rows through the ORM and RQ's registry; changes nothing, and depends on no surface. Every list pages by key, every
count has a stated cap, and no query reads more as the tables grow. `payloads` alone decodes and redacts payloads; the
surfaces check who may see them. A surface that limits which runs a user sees passes a queryset as `within`.

The public names are those of `public_names`, which is loaded at the first use of one: a worker needs a few words from
here (`humanize`, `wording`, `pending_migrations`) and none of the rest, which is a tenth of its start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from durable.inspection.public_names import *  # noqa: F403
else:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        # asking for a dunder, as importing machinery and inspection do, loads nothing
        names = None if name.startswith("__") else import_module("durable.inspection.public_names")
        if name not in getattr(names, "__all__", ()):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(names, name)
        globals()[name] = found
        return found
