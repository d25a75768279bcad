"""The state of the cluster: reflectors apply API events to the Fleet."""
