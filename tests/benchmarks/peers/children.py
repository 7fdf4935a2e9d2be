"""A peer's process: asked in its arguments, it answers with a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.measuring import Figure

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def answers(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """The figures that a command prints as its last line. Raises RuntimeError with what it said if it fails."""
    done = subprocess.run(
        [*command], env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise RuntimeError(f"{' '.join(command)} failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def figures(module: str, *arguments: object, environment: Mapping[str, str], unit: str = "/s") -> Iterator[Figure]:
    """The figures of a module of ours, run as a program."""
    command = [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments)]
    for name, value in answers(command, environment).items():
        yield Figure(name, value, "µs/entry" if "replay" in name else "steps" if "at once" in name else unit)
