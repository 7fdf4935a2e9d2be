"""Runs that share limits under the same faults, and an audit by SQL."""
