"""All measurements. Needs Django to be set up."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from tests.benchmarks import measures
from tests.benchmarks.measuring import MEASURES, Measure
from tests.benchmarks.peers import absurd, dbos, reference, rq

_KNOWN = (measures, absurd, dbos, reference, rq)  # importing them is what makes them known


def chosen(names: Sequence[str] | None) -> list[Measure]:
    """The measurements of these names, in the order of a round; all without names. Exits for a name unknown."""
    if not names:
        return list(MEASURES.values())
    for name in names:
        if name not in {*MEASURES, "ours", "peers"}:
            nearest = get_close_matches(name, MEASURES, n=1)
            advice = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise SystemExit(f"no measurement is called {name!r}; {advice}there are: {', '.join(MEASURES)}")
    return [each for each in MEASURES.values() if {each.name, "peers" if each.is_peer else "ours"} & set(names)]
