"""The debug API, which the operator serves over HTTP in addition to probes and metrics."""
