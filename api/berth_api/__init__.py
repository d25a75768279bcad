"""The shared language of Berth: objects, names, quantities, requests and allocations.

Everything here is pure: it parses and renders what stands in Kubernetes objects, and does no I/O.
"""
