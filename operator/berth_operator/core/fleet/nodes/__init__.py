"""The columns of nodes and of their cards."""
