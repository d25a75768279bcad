"""What feeds the cache: which objects are watched, and which table each goes into; snapshots."""
