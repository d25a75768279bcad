"""What pods really hold, as kubelet and the machine tell it: GpuPods, and the agent's part of a Device's status."""
