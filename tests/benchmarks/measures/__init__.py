"""The measurements, a file for each subject. Importing this makes them known, in the order of a round."""

from tests.benchmarks.measures import one_run, starts, runs, waits, fan_out, limits, tables  # noqa: I001

__all__ = ["fan_out", "limits", "one_run", "runs", "starts", "tables", "waits"]
