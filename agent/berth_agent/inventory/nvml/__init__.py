"""NVIDIA's management library, behind one owner thread."""
