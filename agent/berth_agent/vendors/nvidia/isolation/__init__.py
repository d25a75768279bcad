"""Limit containers to their shares of NVIDIA's cards (docs/mps.md).

pods of the node ──> limits ──> MpsDaemon ──> nvidia-cuda-mps-control
|
kubelet: Allocate, PreStartContainer ──> MPS, HAMi-core ──> mounts and variables
"""
