"""What the demo shows while it runs: a table that keeps itself up to date on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["Display", "OrderLine"]

MOST_ROWS = 16


@dataclass(frozen=True, slots=True)
class OrderLine:
    """One order, as one line shows it: how many of the `stages` are done, and where it stands in a word."""

    number: int
    customer: str
    done: int
    stages: int
    standing: str
    worker: str
    is_begun: bool
    is_ended: bool


class Display:
    """A context manager; `say` for what happens once, `show` for where the orders stand."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._standing: dict[int, str] = {}
        self._live = Live(console=console, refresh_per_second=8, transient=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """One line that stays."""
        clock = f"{time.monotonic() - self._began:5.1f} s  "
        self._console.print(Text.assemble((clock, "dim"), (text, style)), soft_wrap=True)

    def show(self, orders: Sequence[OrderLine]) -> None:
        """Where the orders stand now."""
        if self._live:
            self._live.update(_table(orders))
            return
        for order in orders:
            if self._standing.get(order.number) != order.standing:
                self._standing[order.number] = order.standing
                self.say(f"order {order.number}: {order.standing}")


def _table(orders: Sequence[OrderLine]) -> Table:
    ended = sum(order.is_ended for order in orders)
    table = Table(
        title=f"{ended} of {len(orders)} orders have ended", title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    for title in ("order", "customer", "", "stands at", "worker"):
        table.add_column(title, style="" if title else "cyan", no_wrap=True)
    # Where there are too many, those that have ended longest ago give way.
    hidden = max(0, len(orders) - MOST_ROWS)
    given_way = {order.number for order in [each for each in orders if each.is_ended][:hidden]}
    for order in [each for each in orders if each.number not in given_way][:MOST_ROWS]:
        bar = "━" * order.done + "╌" * (order.stages - order.done)
        style = "dim" if order.is_ended else ""
        table.add_row(str(order.number), order.customer, bar, order.standing, order.worker, style=style)
    return table
