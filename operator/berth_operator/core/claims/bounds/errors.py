"""Errors that end an allocation before everything was tried."""

from typing import Final


class AllocationError(Exception):
    """The allocation ended; the message names the object."""


class ClaimError(AllocationError):
    """The claim or its class cannot be allocated on any node."""


class NodeError(AllocationError):
    """The allocation on this node ended; others may do."""


INVALID_POOLS: Final = "invalid resource pools were encountered"


class InvalidPoolsError(NodeError):
    """Nothing was found, and a pool of the node is invalid."""

    def __init__(self) -> None:
        """Set Kubernetes' message."""
        super().__init__(INVALID_POOLS)


class TooMuchWorkError(NodeError):
    """Nothing was found within the bound on steps."""


class NoWorkError(NodeError):
    """The work about claims is used up, or waits for the worker process."""
