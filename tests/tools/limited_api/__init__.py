"""An API that allows so many requests a minute, and so many at once of each tenant; runs that call it while their workers
are killed; and what the API has seen. `python -m tests.tools.limited_api` says how.
"""
