"""The audit of limits, by SQL alone: of the rows, and of a log that triggers write.

A trigger notes each slot that is taken and given up, and counts what is held of its key at that moment. All of this
happens under the lock of the key's row, so the log of a key is in the order of its commits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from django.db import connection

from durable.core.limits.rates import Rate
from durable.models import Run
from tests.chaos.audit import numbers_drawn_twice
from tests.chaos.limits.load import LimitLoad
from tests.chaos.limits.workflows import AT_ONCE, MOST, RATES
from tests.support.rows import broken, rows

_LOG: Final = """
CREATE TABLE chaos_log (seq bigserial PRIMARY KEY, kind text, run_id text, what text, held integer, begun bigint);

CREATE FUNCTION chaos_slot() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'DELETE' THEN
    INSERT INTO chaos_log (kind, run_id, what)
    VALUES (CASE WHEN OLD.is_held THEN 'given up' ELSE 'left the line' END, OLD.run_id, OLD."limit" || '/' || OLD.key);
  ELSIF NOT NEW.is_held THEN
    INSERT INTO chaos_log (kind, run_id, what) VALUES ('waits', NEW.run_id, NEW."limit" || '/' || NEW.key);
  ELSE
    INSERT INTO chaos_log (kind, run_id, what, held)
    SELECT 'taken', NEW.run_id, NEW."limit" || '/' || NEW.key, count(*) FROM durable_slot
    WHERE "limit" = NEW."limit" AND key = NEW.key AND is_held;
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION chaos_rate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.begun <> OLD.begun THEN
    INSERT INTO chaos_log (kind, what, begun) VALUES ('begun', NEW."limit" || '/' || NEW.key, NEW.begun);
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER chaos_rate AFTER UPDATE ON durable_ratekey FOR EACH ROW EXECUTE FUNCTION chaos_rate();

CREATE TRIGGER chaos_slot AFTER INSERT OR DELETE OR UPDATE OF is_held ON durable_slot FOR EACH ROW
  EXECUTE FUNCTION chaos_slot();
"""

#: What must have no row, and what each row means.
_NEVER: Final = {
    "a slot is left": 'SELECT run_id, "limit", key, is_held FROM durable_slot',
    "a reservation is left": 'SELECT run_id, "limit", key, at FROM durable_reservation',
    "a note is left for the sweep": 'SELECT run_id, "limit", key FROM durable_slotnote',
    "a run has charged twice": "SELECT reference FROM shop_charge GROUP BY reference HAVING count(*) > 1",
}


def install() -> None:
    """Create the log and its triggers."""
    with connection.cursor() as cursor:
        cursor.execute(_LOG)


def broken_promises(load: LimitLoad) -> list[str]:
    """What is wrong; [] if all is well."""
    return [*broken(_NEVER), *_ends(load), *_held(), *_begun(), *numbers_drawn_twice()]


def taken() -> int:
    """How many slots were taken."""
    [(number,)] = rows("SELECT count(*) FROM chaos_log WHERE kind = 'taken'")
    return int(number)


def _ends(load: LimitLoad) -> Iterator[str]:
    states = dict(Run.objects.values_list("pk", "state"))
    for run_id, expected in load.expected.items():
        if states.get(run_id) != expected:
            yield f"{run_id} is {states.get(run_id, 'lost')}, not {expected}"
    [(charges,)] = rows("SELECT count(*) FROM shop_charge")
    if charges != load.charges:
        yield f"{charges} charges, not {load.charges}"


def _held() -> Iterator[str]:
    """Follow the log: never more held than allowed, nothing given up that was not taken, each limit used."""
    held: dict[str, Counter[str]] = defaultdict(Counter)
    waited = False
    for kind, run_id, what, counted in rows(
        "SELECT kind, run_id, what, held FROM chaos_log WHERE kind <> 'begun' ORDER BY seq"
    ):
        limit = what.partition("/")[0]
        most = MOST if limit == "chaos-edited" else AT_ONCE[limit]
        if kind == "taken":
            held[what][run_id] += 1
            if counted > most:
                yield f"{run_id} took a slot of {what}: {counted} are held, and {most} are allowed"
            if held[what].total() > most:
                yield f"{run_id} took a slot of {what} that {', '.join(held[what])} had"
        elif kind == "given up":
            held[what][run_id] -= 1
            if held[what][run_id] < 0:
                yield f"{run_id} gave up a slot of {what} that it did not have"
            held[what] += Counter()
        elif kind == "waits":
            waited = True
    if unused := AT_ONCE.keys() - {what.partition("/")[0] for what in held}:
        yield f"nobody has taken a slot of {sorted(unused)}"
    if not waited:
        yield "nobody has waited: this chaos proves nothing"


def _begun() -> Iterator[str]:
    """Follow the log: the moments of the attempts that were let begin are never closer than the rate allows."""
    newest: dict[str, int] = {}
    for what, begun in rows("SELECT what, begun FROM chaos_log WHERE kind = 'begun' ORDER BY seq"):
        spacing = Rate.of(RATES[what.partition("/")[0]]).spacing
        if what in newest and begun - newest[what] < spacing:
            yield f"two attempts of {what} have begun within {(begun - newest[what]) / 1e9:.6f} s"
        newest[what] = begun
    if unused := RATES.keys() - {what.partition("/")[0] for what in newest}:
        yield f"nobody has taken a unit of {sorted(unused)}"
