"""The read side: what the admin, REST and the command line show, defined once for all three.

Reads rows through the ORM and RQ's registry; changes nothing, and depends on no surface. Every list pages by key, every
count has a stated cap, and no query reads more as the tables grow. `payloads` alone decodes and redacts payloads; the
surfaces check who may see them. A surface that limits which runs a user sees passes a queryset as `within`.

The public names are those of `public_names`, which is loaded at the first use of one: a worker needs a few words from
here (`humanize`, `wording`, `database`) and none of the rest, which is a tenth of its start.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from durable.inspection.public_names import *  # noqa: F403
else:  # a type checker would take any name for one of these
    #: `from durable.inspection import one` asks for the name before it imports the module: that must load no other.
    _MODULES = frozenset(each.name for each in iter_modules(__path__))  # noqa: F405  # of this package

    def __getattr__(name: str) -> object:
        # asking for a dunder, as importing machinery and inspection do, loads nothing
        is_public = name not in _MODULES and not name.startswith("__")
        names = import_module("durable.inspection.public_names") if is_public else None
        if name not in getattr(names, "__all__", ()):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(names, name)
        globals()[name] = found
        return found
