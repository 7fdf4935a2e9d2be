"""Drivers perform the effects of operations: `sync` with threads, `aio` with asyncio. They must not decide anything."""
