"""Families of runs under the same faults: children, keys and schedules, and an audit by SQL."""
