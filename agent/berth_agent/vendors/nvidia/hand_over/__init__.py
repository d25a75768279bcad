"""Offer NVIDIA's cards to kubelet as `nvidia.com/*`, and give them to containers, as NVIDIA's plugin does."""
