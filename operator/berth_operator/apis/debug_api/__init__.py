"""The debug API. The operator serves it over HTTP, next to probes and metrics."""
