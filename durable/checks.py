"""Django system checks of durable."""
