"""Runs of every kind under random faults of everything around them, and an audit from the rows alone."""
