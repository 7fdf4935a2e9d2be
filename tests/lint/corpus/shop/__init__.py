"""A package whose workflows, helpers and steps are in several modules."""

from .helpers import stamp as exported_stamp
