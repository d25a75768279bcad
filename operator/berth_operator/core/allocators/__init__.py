"""Which cards of a node a pod gets, and how much of each."""
