"""The node's agent. It finds the devices of a node, publishes them as a Device, and renews a heartbeat Lease.

An inventory reads what the hardware (or a fleet file) shows. The publisher updates the Device of each node from that
reading. The heartbeat renews the node's Lease.
"""
