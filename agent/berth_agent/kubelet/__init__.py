"""All communication between the agent and kubelet: device plugin, admission and PodResources."""
