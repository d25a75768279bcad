"""NVIDIA's management library, owned by one thread."""
