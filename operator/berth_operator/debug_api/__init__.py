"""What the operator serves by HTTP, beside probes and metrics: the debug API."""
