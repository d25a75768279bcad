"""The Fleet: nodes, devices and what pods hold of them, as columns."""
