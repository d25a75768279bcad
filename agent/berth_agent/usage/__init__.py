"""What pods really hold, by kubelet and the machine: GpuPods, and the agent's part of a Device's status."""
