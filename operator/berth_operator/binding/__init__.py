"""The binding cycle, which runs concurrently with decisions: bind, confirm, retry, forget."""
