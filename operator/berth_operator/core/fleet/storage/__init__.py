"""Claims and volumes, and how many of them each node has attached."""
