"""The Fleet: nodes, devices and what pods use of them, as columns."""
