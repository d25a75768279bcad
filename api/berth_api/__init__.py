"""Code that the operator and the agent share: objects, names, quantities, requests and allocations.

Everything here is pure: it parses and renders fields of Kubernetes objects, and does no I/O.
"""
