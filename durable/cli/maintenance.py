"""`durable doctor` checks what runs need, and lists what needs an operator; `prune` deletes old runs, `forget` those
about one thing; `partition` makes the tables anew in parts; `restored` decides about a database that went back in time.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final

from django.core.checks import ERROR, run_checks
from django.core.management.base import CommandError
from django.utils import timezone
from redis.exceptions import RedisError

from durable import marks
from durable.checks.database import MARK_ADVICE, NETWORK_ADVICE, missing_mark, missing_network_options, unsuitable
from durable.cli.output import Cell, Exit, Output
from durable.cli.subcommand import (
    ACTING,
    CONFIRMING,
    REVISION,
    acting,
    argument,
    confirm,
    duration,
    exclusive,
    formats,
    need_terminal,
    subcommand,
    tags,
)
from durable.conf import MOST_PARTITIONS, conf, may_be_partitions
from durable.execution.connections import DATABASE_TROUBLE
from durable.inspection.counting import Count
from durable.inspection.database import (
    CLOCK_TOLERANCE,
    clock_difference,
    how_to_migrate,
    how_to_partition,
    how_to_set_isolation,
    missing_migrations,
    wrong_isolation,
    wrong_partitions,
    wrong_routines,
)
from durable.inspection.findings import KINDS, collect_findings
from durable.inspection.humanize import moment, plural, relative, span
from durable.inspection.limits import unused_limits, unused_rates
from durable.inspection.reading import reading
from durable.inspection.run_facts import checked_tags
from durable.inspection.schedules import count_ticks, gone_schedules
from durable.inspection.undone import state_word
from durable.inspection.workers import Workers, worker_overview
from durable.listings.restored import RESTORED
from durable.listings.shapes import Seen, data_of
from durable.notifier import channel, registry
from durable.operations.catalogue import BY_ACTION
from durable.operations.prune import Forgotten, forget, preview_pruning, prune
from durable.operations.restored import GO_ON, HOLD, UNKNOWN, Decided, carry_on, decide
from durable.operations.schedules.sync import differences
from durable.retention import STATES, Policy, Pruned, RetentionError
from durable.store.partitions.copying import abandon, partition
from durable.store.partitions.layout import PartitionError

# -- doctor

OK: Final = "ok"
NOTE: Final = "note"  # information
SHOWN_DIFFERENCES: Final = 5
PROBLEM: Final = "problem"  # an operator must act
#: What the doctor looks at beside the findings about runs.
_LOOKED_AT: Final = frozenset(
    {
        *("settings", "database", "routines", "partitions", "unsuitable", "network", "isolation", "clock", "redis"),
        *("workers", "sweep", "mark", "schedules", "schedules_gone", "ticks_skipped", "limits_unused", "runs"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One check (`kind` is a stable word), its verdict, the finding, and the advice."""

    kind: str
    verdict: str
    found: str
    advice: str = ""
    runs: Sequence[str] = ()
    others: str = ""  # how many more runs there are


def _kind(text: str) -> str:
    if text not in (known := KINDS | _LOOKED_AT):
        raise ArgumentTypeError(f"the doctor does not look at {text!r}; it looks at {', '.join(sorted(known))}")
    return text


@subcommand(
    "doctor",
    "Check database, Redis, workers, sweep and runs; exit with 1 when a person is needed.",
    argument(
        "--ignore", action="append", type=_kind, default=[], metavar="KIND", help="let this pass; may be given again"
    ),
    formats("table", "json"),
)
def doctor_command(options: Namespace, output: Output) -> int:
    diagnoses = list(_diagnoses())
    for number, each in enumerate(diagnoses):
        if each.kind in options.ignore and each.verdict == PROBLEM:
            diagnoses[number] = replace(each, verdict=NOTE)
    if output.format == "json":
        for each in diagnoses:
            data = {"kind": each.kind, "verdict": each.verdict, "found": each.found, "advice": each.advice}
            output.json(data | {"runs": list(each.runs)})
    else:
        rows = ((each.kind, Cell(each.verdict, each.verdict), each.found) for each in diagnoses)
        output.table(["LOOKED AT", "VERDICT", "FOUND"], rows)
        for each in diagnoses:
            if each.verdict != OK:
                _print_advice(output, each)
    return Exit.REFUSED if any(each.verdict == PROBLEM for each in diagnoses) else Exit.OK


def _print_advice(output: Output, diagnosis: Diagnosis) -> None:
    output.line()
    output.line(f"{diagnosis.kind}: {diagnosis.found}")
    if diagnosis.advice:
        output.line(f"  {diagnosis.advice}")
    for run_id in diagnosis.runs:
        output.line(f"  {run_id}")
    if diagnosis.others:
        output.line(f"  and {diagnosis.others} more")


def _diagnoses() -> Iterator[Diagnosis]:
    yield _settings()
    database = _database()
    yield database
    if database.verdict == PROBLEM:
        return  # the other checks read from the database
    yield from _server()
    workers = worker_overview()
    yield _redis(workers)
    if not workers.problem:
        yield _workers(workers)
    if workers.uses_redis and not workers.problem:
        yield _sweep()
    yield _mark()
    yield from _schedules()
    yield from _limits()
    yield from _attention(workers)


def _schedules() -> Iterator[Diagnosis]:
    """Yield differences between the schedules' rows and the code, schedules left behind by the code, and skipped
    moments.
    """
    if different := differences():
        found = "; ".join(map(str, different[:SHOWN_DIFFERENCES]))
        advice = (
            "Run: python manage.py durable schedules --sync. With the newest code: it makes the rows as this code says."
        )
        yield Diagnosis(kind="schedules", verdict=NOTE, found=found, advice=advice)
    if gone := gone_schedules():
        found = f"no longer in the code, and paused: {', '.join(gone)}"
        advice = "Delete them with `durable delete-schedule`, or deploy code that has them."
        yield Diagnosis(kind="schedules_gone", verdict=NOTE, found=found, advice=advice)
    if (skipped := count_ticks("skipped", timezone.now() - timedelta(days=1))).number:
        count = Count(number=skipped.number, is_capped=skipped.is_capped)
        found = f"skipped in the last day, while an earlier run had not ended: {count}, of {', '.join(skipped.names)}"
        advice = (
            "`durable schedules NAME` says which runs they were. If their runs usually take longer than the time between two "
            "moments, choose a rule with fewer, or an `overlap` that lets them wait or run side by side."
        )
        yield Diagnosis(kind="ticks_skipped", verdict=NOTE, found=found, advice=advice)


def _limits() -> Iterator[Diagnosis]:
    if unused := sorted({*unused_limits(), *unused_rates()}):
        found = f"neither the settings nor a workflow names: {', '.join(unused)}"
        advice = (
            "No run has a slot of them or waits for a moment of their rates. If a step was to name one, its name is spelled "
            "otherwise there."
        )
        yield Diagnosis(kind="limits_unused", verdict=NOTE, found=found, advice=advice)


def _settings() -> Diagnosis:
    wrong = [each for each in run_checks(tags=["durable"]) if each.level >= ERROR]
    if not wrong:
        return Diagnosis(kind="settings", verdict=OK, found="manage.py check finds no error")
    advice = " ".join(str(each.hint) for each in wrong if each.hint)
    return Diagnosis(kind="settings", verdict=PROBLEM, found=" ".join(str(each.msg) for each in wrong), advice=advice)


def _database() -> Diagnosis:
    try:
        missing = missing_migrations()
    except DATABASE_TROUBLE as error:
        advice = f'Check DATABASES["{conf.DATABASE}"] and the server.'
        return Diagnosis(kind="database", verdict=PROBLEM, found=f"it does not answer: {error}", advice=advice)
    if missing:
        found = f"migrations are missing: {', '.join(missing)}"
        return Diagnosis(kind="database", verdict=PROBLEM, found=found, advice=f"Run: {how_to_migrate()}")
    return Diagnosis(kind="database", verdict=OK, found="it answers, and has durable's tables")


def _server() -> Iterator[Diagnosis]:
    """Yield the faults of a database server that answers and has the tables."""
    if wrong := wrong_routines():
        advice = f"Run: {how_to_migrate()}. It creates them again, even if no migration has to be applied."
        yield Diagnosis(kind="routines", verdict=PROBLEM, found="; ".join(wrong), advice=advice)
    if different := wrong_partitions():
        yield Diagnosis(kind="partitions", verdict=PROBLEM, found=different, advice=how_to_partition())
    if why := unsuitable():
        yield Diagnosis(kind="unsuitable", verdict=PROBLEM, found=why)
    if missing := missing_network_options():
        found = f'DATABASES["{conf.DATABASE}"] has no {", ".join(missing)} in its OPTIONS'
        yield Diagnosis(kind="network", verdict=NOTE, found=found, advice=NETWORK_ADVICE)
    if level := wrong_isolation():
        found = f"sessions begin with {level.upper()} instead of READ COMMITTED"
        yield Diagnosis(kind="isolation", verdict=PROBLEM, found=found, advice=how_to_set_isolation())
    ahead = clock_difference()
    if ahead is not None and abs(ahead) > CLOCK_TOLERANCE:
        where = "ahead of" if ahead > 0 else "behind"
        found = f"the clock here is {abs(ahead):.1f} s {where} the database's"
        advice = (
            "Keep clocks in step with NTP, here and on the database's host: workers and timers go by the database's clock "
            "meanwhile, but web servers and your own code do not, so that what they start is due at the wrong time. Run this "
            "command on each host."
        )
        yield Diagnosis(kind="clock", verdict=PROBLEM, found=found, advice=advice)


def _redis(workers: Workers) -> Diagnosis:
    if workers.problem:
        advice = (
            "Check RQ_QUEUES and the server. Workers of durable_worker poll the database every "
            f"{span(conf.POLL_INTERVAL)} until Redis is back; plain RQ workers execute nothing meanwhile."
        )
        return Diagnosis(kind="redis", verdict=PROBLEM, found=workers.problem, advice=advice)
    if not workers.uses_redis:
        found = f'not used (DURABLE["REDIS"] is False): {channel.in_words()}'
        return Diagnosis(kind="redis", verdict=OK, found=found)
    return Diagnosis(kind="redis", verdict=OK, found="it answers")


def _workers(workers: Workers) -> Diagnosis:
    held = sum(len(worker.runs) for worker in workers.workers)
    known = [worker for worker in workers.workers if worker.state not in ("unknown", "dead")]
    dead = sum(worker.is_dead for worker in workers.workers)
    gone = f", and {plural(dead, 'worker')} that died in the last hour" if dead else ""
    found = f"{plural(len(known), 'worker')}, {plural(held, 'run')} in hand{gone}"
    if known or not workers.uses_redis:  # in that case only workers of this release are known
        return Diagnosis(kind="workers", verdict=OK, found=found)
    advice = "Start some: python manage.py durable_worker"
    return Diagnosis(kind="workers", verdict=PROBLEM, found=f"there are none{gone}", advice=advice)


def _sweep() -> Diagnosis:
    now = timezone.now()
    try:
        last = registry.last_sweep()
    except (RedisError, OSError) as error:
        return Diagnosis(kind="sweep", verdict=PROBLEM, found=f"Redis did not answer: {error}")
    advice = "Keep at least one manage.py durable_worker: plain RQ workers bring neither the timer nor the sweep."
    if last is None:
        return Diagnosis(kind="sweep", verdict=PROBLEM, found="no sweep has given a sign of life", advice=advice)
    seen = f"last {relative(last.at, now)}, by {last.by}"
    if last.is_overdue(now):
        return Diagnosis(kind="sweep", verdict=PROBLEM, found=seen, advice=advice)
    return Diagnosis(kind="sweep", verdict=OK, found=seen)


def _mark() -> Diagnosis:
    """Return whether a mark of the database is kept, and whether the database is behind it."""
    if problem := missing_mark():
        return Diagnosis(kind="mark", verdict=NOTE, found=problem, advice=MARK_ADVICE)
    found = marks.look()
    if found.problem:
        said = f"it cannot be read from {marks.place_of_mark()}: {found.problem}"
        return Diagnosis(kind="mark", verdict=PROBLEM, found=said, advice=MARK_ADVICE)
    if found.is_behind:
        advice = "`durable restored` lists the runs that do things again, and lets workers go on."
        return Diagnosis(kind="mark", verdict=PROBLEM, found=found.in_words(), advice=advice)
    if found.mark is None:
        advice = "The sweep of a durable_worker writes it. If it was there before, it was deleted: Redis was flushed."
        return Diagnosis(kind="mark", verdict=NOTE, found=f"there is none in {marks.place_of_mark()}", advice=advice)
    said = f"kept in {marks.place_of_mark()}, written {relative(found.mark.at, timezone.now())}"
    return Diagnosis(kind="mark", verdict=OK, found=said)


def _attention(workers: Workers) -> Iterator[Diagnosis]:
    """Yield the findings about runs. Redis has been checked already."""
    with reading():
        found = [each for each in collect_findings(timezone.now(), workers) if each.kind != "redis"]
    for each in found:
        yield Diagnosis(
            kind=each.kind,
            verdict=PROBLEM if each.is_urgent else NOTE,
            found=f"{each.title} ({each.count})" if each.runs else each.title,
            advice=each.advice,
            runs=[run_id for run_id, _ in each.runs],
            others=str(replace(each.count, number=left))
            if each.runs and (left := each.count.number - len(each.runs))
            else "",
        )
    if not found:
        yield Diagnosis(kind="runs", verdict=OK, found="none needs a person")


# -- prune

COUNTED: Final = 10_000  # runs to count in a preview


@subcommand(
    "prune",
    "Delete runs that ended long ago with their histories and messages, and old rows of the audit log.",
    argument(
        "--older-than",
        type=duration,
        metavar="DURATION",
        help='ended so long ago: "30 days" (default: as DURABLE["RETENTION"] says)',
    ),
    argument("-s", "--state", action="append", choices=STATES, default=[], metavar="STATE", help="may be given again"),
    argument("-w", "--workflow", metavar="NAME", help="runs of this workflow alone"),
    ACTING,
    CONFIRMING,
    formats("table", "json"),
)
def prune_command(options: Namespace, output: Output) -> int:
    policy = _policy(options.older_than, options.state, options.workflow)
    if options.dry_run:
        _print_pruned(output, preview_pruning(policy, most=COUNTED), "would go", is_capped=True)
        return Exit.OK
    if not options.yes:
        _ask(output, policy)
    with acting(options):
        pruned = prune(policy, tell=lambda so_far: output.say(f"{so_far.runs} runs so far"))
    _print_pruned(output, pruned, "are gone", is_capped=False)
    return Exit.OK


def _policy(older_than: timedelta | None, states: list[str], workflow: str | None) -> Policy:
    if older_than is not None:
        return Policy.older_than(older_than.total_seconds(), states=states, workflow=workflow)
    if states or workflow:
        raise CommandError("--state and --workflow go with --older-than", returncode=Exit.USAGE)
    try:
        policy = Policy.of(conf.RETENTION)
    except RetentionError as error:
        raise CommandError(f'DURABLE["RETENTION"]: {error}. {error.hint}', returncode=Exit.USAGE) from error
    if policy.keeps_all:
        raise CommandError(
            'DURABLE["RETENTION"] keeps everything: say --older-than, "30 days" for example', returncode=Exit.USAGE
        )
    return policy


def _ask(output: Output, policy: Policy) -> None:
    need_terminal("pruning deletes for good: look at it with --dry-run, then say --yes")
    found = preview_pruning(policy, most=COUNTED)
    what = f"{_counted(found.runs)} runs and {_counted(found.actions)} rows of the audit log"
    confirm(output, f"Delete {what} for good?")


def _counted(number: int) -> str:
    return f"{number:,}{' or more' if number >= COUNTED else ''}"


def _print_pruned(output: Output, pruned: Pruned, what: str, *, is_capped: bool) -> None:
    numbers = {name: number for name, number in asdict(pruned).items() if not is_capped or name in ("runs", "actions")}
    if output.format == "json":
        output.json(numbers)
        return
    shown, words = _counted if is_capped else "{:,}".format, {"actions": "rows of the audit log"}
    output.line(", ".join(f"{shown(number)} {words.get(name, name)}" for name, number in numbers.items()) + f" {what}")


# -- forget

_NAMED: Final = 20  # runs
#: What durable cannot look through, and what is not durable's.
_ELSEWHERE: Final = (
    "ids of the runs in orders of bulks, saved views, answers kept for idempotency keys (a day), and logs",
    "what steps have emitted within the last hour (streams), which Redis drops by itself",
    "files of `durable export`, backups and replicas of the database, and what traces and error trackers were sent",
    "what the workflows have written or sent themselves, and runs that name it in their input without being about it",
)


@subcommand(
    "forget",
    "Delete the ended runs about one thing, or with a tag, and their children; open ones are named.",
    argument("--about", default="", metavar="MODEL:KEY", help="runs about this: shop.order:42"),
    tags("runs with this tag; with all of them if it is given again"),
    ACTING,
    CONFIRMING,
    formats("table", "json"),
)
def forget_command(options: Namespace, output: Output) -> int:
    if not (options.about or options.tag):
        raise CommandError("say which runs: --about shop.order:42, or --tag name=value", returncode=Exit.USAGE)
    wanted = {"about": options.about, "tags": checked_tags(options.tag)}
    with acting(options):
        found = _forgotten(**wanted, is_trial=True)
        if not options.dry_run:
            if not options.yes:
                need_terminal("forgetting deletes for good: look at it with --dry-run, then say --yes")
                confirm(output, f"Delete {plural(len(found.ended), 'ended run')} for good?")
            found = _forgotten(**wanted)
    _print_forgotten(output, found, is_trial=options.dry_run)
    return Exit.REFUSED if (found.open or found.kept) and not options.dry_run else Exit.OK


def _forgotten(**wanted: Any) -> Forgotten:
    try:
        return forget(**wanted)
    except ValueError as error:
        raise CommandError(str(error), returncode=Exit.USAGE) from error


def _print_forgotten(output: Output, found: Forgotten, *, is_trial: bool) -> None:
    if output.format == "json":
        names = ("open", "kept", "rows", *(["ended"] if is_trial else []))
        output.json(
            {name: getattr(found, name) for name in names} | {"deleted": asdict(found.pruned), "elsewhere": _ELSEWHERE}
        )
        return
    if is_trial:
        output.line(f"{plural(len(found.ended), 'ended run')} would be deleted")
        _print_ids(output, found.ended)
    else:
        _print_pruned(output, found.pruned, "are gone", is_capped=False)
    for ids, what in (
        (found.open, "open, and not deleted: end it first"),
        (found.kept, "kept, for something refers to it or uses it"),
    ):
        if ids:
            output.line(f"{plural(len(ids), 'run')} {what}")
            _print_ids(output, ids)
    if is_trial or any(found.rows.values()):
        output.line("What stays:")
        for name, number in found.rows.items():
            if number:
                output.line(f"  {number:,} {name}")
    if is_trial:
        for each in _ELSEWHERE:
            output.line(f"  {each}")


def _print_ids(output: Output, ids: Sequence[str]) -> None:
    for run_id in ids[:_NAMED]:
        output.line(f"  {run_id}")
    if len(ids) > _NAMED:
        output.line(f"  and {len(ids) - _NAMED:,} more")


# -- partition


@subcommand(
    "partition",
    "Put the tables of runs and entries into partitions while workers go on; go on with it after an interruption.",
    exclusive(
        argument(
            "--into", type=int, metavar="N", help=f"how many partitions: 2 to {MOST_PARTITIONS}, or 0 for whole tables"
        ),
        argument("--abandon", action="store_true", help="drop what a copy has made that is not in place yet"),
        required=True,
    ),
)
def partition_command(options: Namespace, output: Output) -> int:
    if options.into is not None and not may_be_partitions(options.into):
        raise CommandError(f"--into takes 0, or 2 to {MOST_PARTITIONS}", returncode=Exit.USAGE)
    try:
        if options.abandon:
            abandon(conf.DATABASE, output.say)
        else:
            partition(conf.DATABASE, options.into, output.say)
    except PartitionError as error:
        raise CommandError(str(error), returncode=Exit.REFUSED) from error
    return Exit.OK


# -- restored

_VERB: Final = BY_ACTION["restored"]


@subcommand(
    _VERB.command,
    _VERB.help,
    argument("name", nargs="?", metavar=_VERB.on.metavar, help="the name of the database; any other one is left alone"),
    exclusive(
        argument(
            "--hold", action="store_const", dest="how", const=HOLD, help="pause all open runs, then let workers go on"
        ),
        argument(
            "--unknown",
            action="store_const",
            dest="how",
            const=UNKNOWN,
            help="ask about the next steps of all open runs before they are executed: their verify, or a person",
        ),
        argument("--go-on", action="store_const", dest="how", const=GO_ON, help="let workers go on with all of them"),
    ),
    argument(
        "--copy",
        action="store_true",
        help="with one of these: this database is a copy of another one that goes on, and gets a name of its own",
    ),
    argument("-y", "--yes", action="store_true", help="do not ask"),
    ACTING,
    REVISION,
    formats("table", "json"),
)
def restored_command(options: Namespace, output: Output) -> int:
    seen = Seen(now=timezone.now())
    page = RESTORED.read(seen)
    if options.how is None:
        if options.copy:
            raise CommandError("--copy goes with --hold, --unknown or --go-on", returncode=Exit.USAGE)
        if output.format == "json":
            output.json(data_of(RESTORED.page, page, page.seen or seen))
        else:
            _show(page.about, page, seen, output)
        return Exit.REFUSED if page.about.is_behind or page.about.is_holding else Exit.OK
    if not options.yes:
        need_terminal("say --yes: look at it without an option first")
        confirm(output, f"In the database {page.about.place}: {_WHAT[options.how]} let workers go on?")
    with acting(options):
        decided = decide(options.name or page.about.name, options.how, as_copy=options.copy)
        while not decided.is_done:
            output.say(f"{plural(decided.paused + decided.in_doubt, 'run')} so far")
            more = carry_on(decided.name)
            decided = replace(more, paused=decided.paused + more.paused, in_doubt=decided.in_doubt + more.in_doubt)
    _tell(decided, options.how, output)
    return Exit.OK


_WHAT: Final = {
    HOLD: "pause all open runs, and",
    UNKNOWN: "put all open runs in doubt, and",
    GO_ON: "with all open runs as they are,",
}


def _tell(decided: Decided, how: str, output: Output) -> None:
    if how == HOLD:
        output.say(f"{plural(decided.paused, 'run')} paused. Workers claim runs again; resume what may go on.")
    elif how == UNKNOWN:
        output.say(
            f"{plural(decided.in_doubt, 'run')} in doubt. Workers claim runs again, and ask about their next steps: "
            "`durable list --held` lists what waits for a person."
        )
    else:
        output.say("Workers claim runs again, within seconds.")


def _show(found: Any, page: Any, seen: Seen, output: Output) -> None:
    now = seen.now
    output.line(f"database     {found.place}{f', named {found.name}' if found.name else ''}")
    output.line(f"as of        {moment(found.as_of, now) if found.as_of else 'no sweep has run yet'}")
    mark = f"{moment(found.mark_at, now)}, in {found.mark_place}" if found.mark_at else "there is none"
    output.line(f"mark         {found.problem or mark} {f' (kept in {found.mark_in})' if found.is_kept else ''}")
    if found.decided_at is not None:
        lost = span((found.went_back_from - found.went_back_to).total_seconds())
        output.line(f"went back    by {lost}, decided {moment(found.decided_at, now)}")
    output.line()
    if found.is_holding:
        output.line("Open runs are being paused or put in doubt. Workers claim nothing until all of them are.")
    if not found.is_behind:
        output.line("The database is not behind its mark." if found.is_kept else _OFF)
        return
    if found.is_another_history:
        output.line("Two databases with this name are in use. Workers claim nothing in this one.")
    else:
        output.line(f"The database went back in time, by {span(found.lost.total_seconds())}. Workers claim nothing.")
    output.line(f"Open runs: {found.open}. Due before the mark was written, so that they moved since: {found.moved}.")
    rows = (
        (
            run.id,
            Cell(state_word(run), run.state),
            run.workflow,
            moment(run.wake_at, now),
            page.seen.explanation(run).text,
        )
        for run in found.runs
    )
    output.table(["ID", "STATE", "WORKFLOW", "DUE", "DOES"], rows)
    output.line()
    output.line(
        "Decide: --hold pauses all open runs first, --go-on lets them do again what they did, and --unknown asks"
    )
    output.line("about their next steps before they do them again: their verify, or a person.")
    output.line("If this database is a copy of one that goes on, add --copy.")


_OFF: Final = 'No mark is kept: name a file outside of the database in DURABLE["MARK"], or use Redis.'
