"""Which devices the selectors match. Known results are kept, and slow evaluations leave the operator's loop."""
