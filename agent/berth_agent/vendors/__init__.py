"""Vendors of GPUs, one folder each. `choice` is the one place that chooses among them."""
