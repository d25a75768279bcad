"""Computes the gauges over the state."""
