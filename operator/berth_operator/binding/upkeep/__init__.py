"""What is kept right besides the decisions: charges, allocations that kubelet changed, claims and pools of ours."""
