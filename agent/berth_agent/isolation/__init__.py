"""Offer kubelet the resources through which containers are limited to their shares of cards (docs/mps.md).

The means are a vendor's: each is a `Provider`. `manager` updates what kubelet is offered when the providers change.
"""
