"""The node's agent: finds the devices of a node, publishes them as a Device and renews a heartbeat Lease.

Three parts that know little of each other: an inventory reads what the hardware (or a fleet file) shows, the
publisher brings the Device of each node up to that reading, and the heartbeat renews the node's Lease.
"""
