"""`python -m tests.benchmarks`: measure, and print how durable compares with its peers.

Reads the arguments; the servers are `surroundings`' business. Ends with 1 if a measurement failed, never for a time.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.benchmarks.surroundings import surroundings


def main() -> int:
    """Measure what was asked for; the exit code."""
    given = _arguments()
    if given.short:
        os.environ["BENCHMARKS_SHORT"] = "1"  # for `workers`, in programs of ours too
    with surroundings():
        from rich.console import Console

        from tests.benchmarks.measuring import Bench
        from tests.benchmarks.report import show, write
        from tests.benchmarks.rounds import chosen, take

        console = Console(stderr=True)
        bench = Bench(short=given.short, absurd_sql=given.absurd_sql)
        repeat = given.repeat or (1 if given.short else 3)
        figures = take(bench, chosen(given.only), repeat, lambda line: console.print(line, style="dim"))
        show(figures, Console(width=None if sys.stdout.isatty() else 110))
        if given.json:
            write(figures, given.json)
    return int(any(note.startswith("failed") for note in figures.notes.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help='measurements by name; "ours" or "peers" for all of them'
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures there")
    parser.add_argument("--short", action="store_true", help="small sizes, and one round by default")
    parser.add_argument("--repeat", type=int, metavar="N", help="how many rounds (3)")
    parser.add_argument("--absurd-sql", type=Path, metavar="PATH", help="the file that creates Absurd's schema")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
