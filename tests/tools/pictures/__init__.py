"""The pictures of the admin in the documentation: `uv run python -m tests.tools.pictures.take`."""
