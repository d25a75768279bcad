"""What reconciles objects: the handlers of kopf, the sums on Nodes and Devices, agents' heartbeats and evictions."""
