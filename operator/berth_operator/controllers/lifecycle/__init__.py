"""Loops that follow the agents' Leases and evict pods from failed cards."""
