"""The list and watch API of nvidia-gpu-scheduler (`berth-operator api`): an aggregated API for GpuPods and GpuNodes."""
