"""The objects that the agent writes to the API server: Devices, GpuPods, Leases, and labels of Nodes."""
