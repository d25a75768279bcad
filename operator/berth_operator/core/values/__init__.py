"""Values that decisions read: what a pod requests, what it mounts, and what a filter returns."""
