"""`python -m tests.tools.killed_map [--children 10000] [--cancel-at N]`: one map while a worker is killed every second.

With `--cancel-at`, the parent is cancelled once it has made so many of its children. Prints how long it took and how
often the parent's row was written. Exits with 1, and says why, if a child ran twice or not at all, if the counts are
not those of the rows, or if anything is left at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from tests.e2e.workers import Workers
from tests.support.rows import broken, rows
from tests.tools.servers import own_servers, seeded

PATIENCE: Final = 1_200.0  # seconds for all
SETTINGS: Final = "tests.faults.settings"

#: Counts the writes of the parent's row.
_COUNT: Final = """
CREATE TABLE killed_map_write (seq bigserial PRIMARY KEY, state text);
CREATE FUNCTION killed_map_note() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO killed_map_write (state) VALUES (NEW.state); RETURN NULL; END';
CREATE TRIGGER killed_map AFTER UPDATE ON durable_run FOR EACH ROW WHEN (NEW.parent_id IS NULL)
  EXECUTE FUNCTION killed_map_note();
"""

#: What must have no row, and what each row means.
_NEVER: Final = {
    "a child has posted and its step is not recorded, or the other way round": """
        SELECT r.id, r.state FROM durable_run AS r LEFT JOIN shop_mail AS m ON m.idempotency_key = r.id
        LEFT JOIN durable_entry AS e ON e.run_id = r.id AND e.location = 'post'
        LEFT JOIN durable_entrymetadata AS d ON d.entry_id = e.id
        WHERE r.parent_id IS NOT NULL AND (m.id IS NULL) <> (d.status IS DISTINCT FROM 'completed')""",
    "a child has ended and has not posted": """
        SELECT id, state FROM durable_run AS r WHERE parent_id IS NOT NULL AND state IN ('completed', 'failed')
        AND NOT EXISTS (SELECT 1 FROM shop_mail WHERE idempotency_key = r.id)""",
    "the counts are not those of the rows": """
        SELECT t.* FROM durable_grouptally AS t WHERE waiting + running <> 0
        OR created <> (SELECT count(*) FROM durable_child WHERE member_of = t.group_id)
        OR completed <> (SELECT count(*) FROM durable_run WHERE parent_id = 'parent' AND state = 'completed')
        OR failed <> (SELECT count(*) FROM durable_run WHERE parent_id = 'parent' AND state = 'failed')
        OR cancelled <> (SELECT count(*) FROM durable_run WHERE parent_id = 'parent' AND state = 'cancelled')""",
    "a run is open": "SELECT id, state FROM durable_run WHERE finished_at IS NULL",
    "children are left for the sweep": "SELECT run_id FROM durable_cascade",
    "a turn is left": "SELECT run_id FROM durable_turn",
}


def main() -> int:
    """Try; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.killed_map", description=__doc__)
    parser.add_argument("--children", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=None, help="children that run at a time (default: all)")
    parser.add_argument(
        "--cancel-at", type=int, default=None, help="children that are there when the parent is cancelled"
    )
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two kills (default: 1)")
    options = seeded(parser)
    with own_servers(SETTINGS, LOG_LEVEL="CRITICAL", E2E_MAX_CRASHES="1000000") as directory:
        log = directory / "workers.log"
        workers = Workers(options.workers, dict(os.environ), log, settings=SETTINGS, options=["--concurrency=4"])
        return _try(workers, options)


def _try(workers: Workers, options: argparse.Namespace) -> int:
    from django.db import connection

    from durable.models import Cascade, GroupTally, Run
    from tests.faults.workflows import mapped

    with connection.cursor() as cursor:
        cursor.execute(_COUNT)
    dice = random.Random(options.seed)  # not for secrets
    handle = mapped.using(id="parent").start(options.children, options.at_once)
    began_at = time.monotonic()
    next_kill, cancelled_at = began_at + options.every, None
    with workers:
        while Run.objects.open().exists() or Cascade.objects.exists():
            now = time.monotonic()
            if now - began_at > PATIENCE:
                break
            if now >= next_kill:
                next_kill = now + options.every
                workers.kill_one(dice)
            created = GroupTally.objects.values_list("created", flat=True).first() or 0
            if options.cancel_at is not None and cancelled_at is None and created >= options.cancel_at:
                handle.cancel("enough")
                cancelled_at = created
            time.sleep(0.02)
        took = time.monotonic() - began_at
    problems = [*broken(_NEVER), *_ends(handle, options)]
    [[writes]] = rows("SELECT count(*) FROM killed_map_write")
    tally = GroupTally.objects.get()
    cancelled = "" if cancelled_at is None else f", and it was cancelled with {cancelled_at} children"
    print(
        f"{tally.created} children in {took:.1f} s, {workers.kills} kills; the parent's row was written {writes} times{cancelled}; "
        f"{tally.completed} completed, {tally.failed} failed, {tally.cancelled} cancelled"
    )
    if problems:
        print("\n".join(["BROKEN:", *problems, workers.log.read_text(errors="replace")[-5_000:]]))
        return 1
    print("each child ran once, nothing left")
    return 0


def _ends(handle: Any, options: argparse.Namespace) -> Iterator[str]:
    if options.cancel_at is not None:
        if handle.state != "cancelled":
            yield f"the parent is {handle.state}"
        return
    numbers = [number for number in range(options.children) if number % 10 != 3]
    expected = [len(numbers), options.children - len(numbers), 0, sum(numbers)]
    if handle.output != expected:
        yield f"the parent is {handle.state} and came to {handle.output}, not to {expected}"


if __name__ == "__main__":
    sys.exit(main())
