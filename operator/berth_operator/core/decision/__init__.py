"""Decide one pod or gang: which node and devices it gets, and which pods it may preempt."""
