"""Order what waits, and decide which events wake it."""
