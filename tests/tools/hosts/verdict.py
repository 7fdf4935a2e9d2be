"""What is promised, compared with the ledger and with the rows: one sentence for each promise that was broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from durable import get_run
from durable.models import Run
from project.shop.models import Charge
from tests.tools.hosts.ledger import Account
from tests.tools.hosts.load import Load
from tests.tools.hosts.workflows import CALLS, NUMBERS


def broken_promises(load: Load, left: list[str], *, may_lose: bool, may_repeat: int) -> list[str]:
    """Judge a trial. `left` are the runs that have not ended.

    `may_lose`: its database has lost commits, so that what was recorded may be done again. `may_repeat` is how many
    calls were under way in processes that were struck.
    """
    account = Account.of(load.started)
    problems = [f"has not ended: {_described(each)}" for each in left]
    if not may_lose:
        problems += [f"is lost: {each}" for each in sorted(load.lost)]
        problems += account.made_after_their_record()
        problems += account.with_several_keys()
        if account.repeated > may_repeat:
            problems.append(f"{account.repeated} calls were repeated, and {may_repeat} may have been under way")
    return [*problems, *_runs(load, account)]


def _runs(load: Load, account: Account) -> Iterator[str]:
    booked = Counter(Charge.objects.values_list("reference", flat=True))
    for run in Run.objects.filter(pk__in=load.started):
        if run.state != "completed":
            yield f"{run.pk} is {run.state}: {run.error or run.summary}"
            continue
        output = get_run(run.pk).result()
        if run.workflow == "hosts.collect":
            if output != list(range(NUMBERS)):
                yield f"{run.pk} has received {output}"
            continue
        if missing := account.missing(run.pk, CALLS):
            yield f"{run.pk} is completed without its calls {missing}"
        rows = {number: booked[f"{run.pk}/{number}"] for number in range(CALLS)}
        if set(rows.values()) != {1}:
            yield f"{run.pk} is completed with these rows of each of its atomic steps: {rows}"


def _described(run_id: str) -> str:
    run = Run.objects.filter(pk=run_id).first()
    return f"{run_id}, {run.state}: {run.summary}" if run else run_id
