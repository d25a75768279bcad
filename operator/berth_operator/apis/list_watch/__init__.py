"""The list and watch API of nvidia-gpu-scheduler, `berth-operator api`: GpuPods and GpuNodes by an aggregated API."""
