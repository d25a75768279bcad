"""The controllers that reconcile objects: kopf's handlers, sums on Nodes and Devices, agents' heartbeats, evictions."""
