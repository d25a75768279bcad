"""What columns are made of: arrays, masks and counts that are copied when written, and caches of them."""
