"""A database backend of a vendor that durable does not support."""
