"""The allocator: which devices of a node the claims of a pod get."""
