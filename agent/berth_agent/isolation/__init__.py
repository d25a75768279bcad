"""Offer kubelet the resources through which containers get NICs, or are limited to their shares of cards (docs/mps.md).

Each resource has a `Provider`. Those that limit containers are a vendor's. `manager` updates what kubelet is offered
when the providers change.
"""
