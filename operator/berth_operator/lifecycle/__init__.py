"""Leases to Device readiness."""
