"""The statuses that the operator writes: Devices, PodGroups, GpuPods, and the sums and labels of Nodes."""
