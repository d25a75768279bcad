"""The agent as the driver `gpu.berth.dev` of dynamic resource allocation.

It lists the node's cards in ResourceSlices, and gives containers the cards that a scheduler allocated to their
ResourceClaims. kubelet names the claim, so the agent never guesses for which pod a call is.
"""
