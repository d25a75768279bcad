"""The asynchronous half of a decision: bind, confirm, retry, forget."""
