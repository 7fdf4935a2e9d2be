"""Drivers perform the effects of operations: one synchronously, one with asyncio. They decide nothing."""
