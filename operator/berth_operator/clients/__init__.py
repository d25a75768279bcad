"""The only place that does HTTP."""
