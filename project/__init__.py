"""The project around `durable`: settings, addresses, embedded servers and a small shop that uses it as a user would."""
