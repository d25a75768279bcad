"""Decide one pod or gang: which node and devices it gets, and whom it may preempt."""
