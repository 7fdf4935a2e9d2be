"""The reference engine on Node, in memory: for replay."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.measuring import Bench, Figure, Skipped, measure
from tests.benchmarks.peers.children import ROOT, answers

PACKAGE = "@rivetkit/workflow-engine"
SCRIPT = Path(__file__).with_name("reference.cjs")


@measure("reference", is_peer=True)
def reference(bench: Bench) -> Iterator[Figure]:
    """A replay of recorded steps by the engine whose semantics durable follows, in memory: µs per entry.

    The package is found as `require` finds it from the working directory, or through NODE_PATH. No database is in it.
    """
    node = shutil.which("node")
    if node is None:
        raise Skipped("node is not installed")
    looking = [node, "-e", f"require.resolve('{PACKAGE}')"]
    if subprocess.run(looking, cwd=ROOT, env=os.environ, capture_output=True, check=False).returncode:
        raise Skipped(f"{PACKAGE} is not found: npm install it somewhere and set NODE_PATH to its node_modules")
    for count in (1000, bench.size(10_000, 3000)):
        for name, value in answers([node, str(SCRIPT), str(count)], {}).items():
            yield Figure(name, value, "µs/entry")
