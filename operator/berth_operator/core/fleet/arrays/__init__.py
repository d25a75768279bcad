"""The building blocks of columns: arrays, masks and counts that are copied when written, and caches of them."""
