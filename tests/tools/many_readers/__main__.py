"""`python -m tests.tools.many_readers`: 1,000 readers of 100 streams on one ASGI process, and how late chunks are.

Workers execute a step for each stream, which emits the moment at which it emits. Each reader is a connection to one
uvicorn. The last line says how late a chunk was at its reader, and what the ASGI process took. Exits with 1 if a reader
has not got each chunk and the result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles

from project.servers import free_port
from tests.e2e.workers import Workers
from tests.tools.servers import own_servers

SETTINGS = "tests.tools.many_readers.settings"


def main() -> int:
    """Measure; 0 if each reader got everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.many_readers", description=__doc__)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--readers", type=int, default=1_000)
    parser.add_argument("--chunks", type=int, default=20, help="of each stream (default: 20)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two chunks (default: 1)")
    options = parser.parse_args()
    with own_servers(SETTINGS) as directory:
        return _measured(options, directory)


def _measured(options: argparse.Namespace, directory: Path) -> int:
    from tests.tools.many_readers.workflows import writing

    runs = [
        writing.using(id=f"text-{number}").start(options.chunks, options.every) for number in range(options.streams)
    ]
    port = free_port()
    options_of_uvicorn = ["--port", str(port), "--log-level", "error", "--lifespan", "off"]
    command = [sys.executable, "-m", "uvicorn", *options_of_uvicorn, "tests.tools.many_readers.site:application"]
    server = subprocess.Popen(command)
    slots = -(-options.streams // 2)
    try:
        workers = Workers(
            2, dict(os.environ), directory / "workers.log", settings=SETTINGS, options=[f"--concurrency={slots}"]
        )
        late, wrong = asyncio.run(_read(port, [run.id for run in runs], options, workers))
        seconds, memory = _cost(server.pid)
    finally:
        server.terminate()
        server.wait()
    for each in wrong[:10]:
        print(each)
    percent = quantiles(late, n=100)
    print(
        f"{options.readers} readers of {options.streams} streams: {len(late)} chunks, late by "
        f"{median(late) * 1000:.1f} ms (median), {percent[94] * 1000:.1f} (95 of 100), {percent[98] * 1000:.1f} (99), "
        f"{max(late) * 1000:.1f} (worst); the ASGI process: {seconds:.1f} s of CPU, {memory} MiB"
    )
    return 1 if wrong else 0


async def _read(
    port: int, runs: list[str], options: argparse.Namespace, workers: Workers
) -> tuple[list[float], list[str]]:
    """Open the connections, then let the workers begin; how late each chunk was, and what is missing."""
    late: list[float] = []
    wrong: list[str] = []
    is_open = [asyncio.Event() for _ in range(options.readers)]

    async def reader(number: int) -> None:
        run_id = runs[number % len(runs)]
        while True:
            try:
                source, sink = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:  # the server does not listen yet
                await asyncio.sleep(0.1)
        sink.write(f"GET /stream/{run_id} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        await source.readuntil(b"retry: 1000")
        is_open[number].set()
        chunks, last = 0, ""
        while not last:
            found = re.match(rb"event: (\w+)\n", await source.readuntil(b"\n"))
            if found is None:
                continue
            if found[1] == b"chunk":
                data = json.loads((await source.readuntil(b"\n")).removeprefix(b"data: "))
                late.append(time.time() - data["value"])
                chunks += 1
            else:
                last = found[1].decode()
        if (chunks, last) != (options.chunks, "result"):
            wrong.append(f"reader {number} of {run_id}: {chunks} chunks, then {last}")
        sink.close()

    readers = [asyncio.create_task(reader(number)) for number in range(options.readers)]
    for each in is_open:
        await each.wait()
    print(f"{options.readers} connections are open", flush=True)
    with workers:
        await asyncio.gather(*readers)
    return late, wrong


def _cost(pid: int) -> tuple[float, int]:
    """The CPU seconds and the MiB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert resident is not None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(resident[1]) // 1024


if __name__ == "__main__":
    sys.exit(main())
