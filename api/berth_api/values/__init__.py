"""Values and names of any kind: caches, keys, selectors, lists in messages."""
