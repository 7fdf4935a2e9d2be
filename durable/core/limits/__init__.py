"""Limits, rates and ranks: which run may go on, and which comes first."""
