"""Limit containers to their shares of cards, through resources of a separate device plugin (docs/mps.md).

    pods of the node ──> limits ──> MpsDaemon ──> nvidia-cuda-mps-control
                                        |
    kubelet: Allocate, PreStartContainer ──> provider: MPS, HAMi-core ──> mounts and variables

Limits and conditions are plain functions. `manager` updates what kubelet is offered when the providers change.
"""
