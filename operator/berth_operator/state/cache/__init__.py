"""The cluster as the watches showed it (pods, nodes, devices and gangs), applied to the Fleet."""
