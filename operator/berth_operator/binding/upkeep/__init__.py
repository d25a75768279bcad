"""Repairs outside the decisions: charges, allocations that kubelet changed, and Berth's claims and pools."""
