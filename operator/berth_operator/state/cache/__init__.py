"""What the cluster holds: pods, nodes, devices and gangs as the watches showed them, applied to the Fleet."""
