"""What limits containers to their shares of cards: resources of a device plugin of their own (docs/mps.md).

    pods of the node ──> limits ──> MpsDaemon ──> nvidia-cuda-mps-control
                                        |
    kubelet: Allocate, PreStartContainer ──> provider: MPS, HAMi-core ──> mounts and variables

Limits and conditions are plain functions; `manager` keeps what kubelet is offered in step with the providers.
"""
