"""The watches that feed the cache: the watched objects, the table for each of them, and snapshots."""
