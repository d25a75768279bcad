"""The node's agent: finds the devices of a node, publishes them as a Device and renews a heartbeat Lease.

An inventory reads what the hardware (or a fleet file) shows, the
publisher updates the Device of each node by that reading, and the heartbeat renews the node's Lease.
"""
