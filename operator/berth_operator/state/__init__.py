"""What the cluster looks like: reflectors fold API events into the Fleet."""
