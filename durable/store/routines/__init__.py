"""PostgreSQL's functions and triggers: their texts, the migration operations that create them, and their check.

- The files `*.sql` have the texts, for the migrations and for the check. Values of the engine, such as states, are
  literals there; tests compare them with the enums.
- `operations` has the migration operations. A migration lists the names of what it creates.
- `comparison` compares a database with its applied migrations. The check `durable.W087`, the doctor and the start of
  `durable_worker` report what differs; `manage.py migrate` restores it.

From the first release on, the text of a name never changes. A function or trigger that has to change gets a new name
(`durable_send_2`) and a new migration. The old one stays at least until the release after, because processes of the
version before call it while a deploy is under way.
"""

from __future__ import annotations

from durable.store.routines.comparison import Difference, differences, restore

__all__ = ["Difference", "differences", "restore"]
