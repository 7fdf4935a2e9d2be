"""Limits, rates and ranks: which run may continue, and which comes first."""
