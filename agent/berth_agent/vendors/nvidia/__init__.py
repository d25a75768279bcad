"""GPUs of NVIDIA: read through NVML, and offered as `nvidia.com/*`."""
