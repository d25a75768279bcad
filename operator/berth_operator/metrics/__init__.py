"""The operator's metrics for Prometheus."""
