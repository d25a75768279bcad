"""Metrics for Prometheus: what cards measure, and who holds them."""
