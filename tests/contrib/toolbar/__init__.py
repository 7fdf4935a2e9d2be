"""A project with django-debug-toolbar; `python -m tests.contrib.toolbar` asks its pages."""
