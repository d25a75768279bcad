"""Compute the gauges over the state."""
