"""What can happen to hosts. Each function strikes, and returns when the cause is over or the work has gone on."""

from __future__ import annotations

import time
from typing import Final

from durable import marks
from durable.core.errors import RestoredDatabaseError
from durable.models import OperatorAction
from durable.operations import restored
from tests.support.waiting import force
from tests.tools.hosts import ledger
from tests.tools.hosts.study import WORKERS, Scenario, Study

IN_FLIGHT: Final = 2 * WORKERS  # calls that may be under way in all workers
AHEAD: Final = 120.0  # seconds


def kill(study: Study) -> None:
    primary = study.cluster.leader()
    study.strike_now()
    primary.kill()
    _note_leader(study, study.cluster.leader(beside=primary).name)


def switch_over(study: Study) -> None:
    primary = study.cluster.leader()
    study.strike_now()
    study.cluster.switch_over()
    _note_leader(study, study.cluster.leader(beside=primary).name)


def freeze(study: Study) -> None:
    primary = study.cluster.leader()
    study.strike_now()
    primary.freeze()
    _note_leader(study, study.cluster.leader(beside=primary).name)
    study.work_goes_on()
    primary.thaw()


def vanish(study: Study) -> None:
    primary = study.cluster.leader()
    study.strike_now()
    primary.vanish()
    _note_leader(study, study.cluster.leader(beside=primary).name)
    study.work_goes_on()
    primary.come_back()


def lag(study: Study) -> None:
    study.cluster.set_synchronous(is_on=False)
    primary = study.cluster.leader()
    run_id = study.load.start_patient("cut off", "promoted")
    study.until_calling(run_id, 0)
    study.cluster.cut_off_standbys(primary)
    ledger.note("cut off", run_id, 0, "")
    study.until_calling(run_id, 1)
    study.work_goes_on()  # on a primary whose commits no standby has
    study.strike_now()
    primary.kill()
    study.cluster.give_up_leadership()
    _note_leader(study, study.cluster.leader(beside=primary).name)
    ledger.note("promoted", run_id, 1, "")
    _let_workers_go_on()
    study.work_goes_on()
    study.cluster.heal()
    study.cluster.set_synchronous(is_on=True)
    _note_losses(study)


def restore(study: Study) -> None:
    run_id = study.load.start_patient("backed up", "restored")
    study.until_calling(run_id, 0)
    backup = study.cluster.back_up()
    ledger.note("backed up", run_id, 0, "")
    study.until_calling(run_id, 1)
    study.work_goes_on()  # which the backup does not have
    study.strike_now()
    study.cluster.restore(backup)
    _note_leader(study, study.cluster.leader().name)
    ledger.note("restored", run_id, 1, "")
    _let_workers_go_on()
    study.work_goes_on()
    _note_losses(study)


def lose_redis(study: Study) -> None:
    study.strike_now()
    study.cluster.stop_redis()
    for _ in range(3):
        study.work_goes_on()  # without it
    study.cluster.start_redis()


def kill_workers(study: Study) -> None:
    with study.frozen_workers("pooled") as runs:
        study.strike_now()
        study.workers["pooled"].kill_all()
    study.noted = f"{len(runs)} runs were under way there"


def wake_late(study: Study) -> None:
    with study.frozen_workers("direct") as runs:
        study.strike_now()
        study.until_others_have_gone_on(runs)
        study.noted = f"{len(runs)} runs were under way there"


def skew(study: Study) -> None:
    with study.worker_with_clock(AHEAD):
        for _ in range(4):
            study.work_goes_on()


def _let_workers_go_on() -> None:
    """Decide as an operator does, if the database has gone back by more than a sweep."""

    def decide() -> bool:
        found = marks.look()
        if found.row is not None and found.is_behind:
            try:
                restored.decide(found.row.name, restored.GO_ON)
            except RestoredDatabaseError:  # the mark has not rested for long enough
                return False
        return True

    deadline = time.monotonic() + 120
    while not force(decide):
        assert time.monotonic() < deadline, "the decision about the database is refused"
        time.sleep(1)


def _note_leader(study: Study, name: str) -> None:
    study.noted = f"{name} leads after {time.monotonic() - study.struck_at:.1f} s"


def _note_losses(study: Study) -> None:
    found = force(lambda: OperatorAction.objects.filter(action="lost_commits", run_id__in=study.load.started).count())
    study.noted += f", lost commits noticed by {found}"


SCENARIOS: Final = [
    Scenario("kill", "the primary's host is killed", kill, may_repeat=IN_FLIGHT),
    Scenario("switchover", "another host becomes the primary, in order", switch_over, may_repeat=IN_FLIGHT),
    Scenario("redis", "both Redis are killed, and come back", lose_redis),
    Scenario("workers", "a host with two workers is killed", kill_workers, may_repeat=WORKERS),
    Scenario("zombie", "two workers are stopped for longer than a lease, and wake up", wake_late, may_repeat=WORKERS),
    Scenario("clock", f"a worker's clock is {AHEAD:g} s ahead", skew, may_repeat=1),
    Scenario("freeze", "the primary's host stops, and wakes up", freeze, may_repeat=IN_FLIGHT),
    Scenario("vanish", "the primary's host vanishes without a reset", vanish, may_repeat=IN_FLIGHT),
    Scenario("lag", "a standby that lags is promoted", lag, may_lose=True),
    Scenario("restore", "a backup is restored", restore, may_lose=True),
]
