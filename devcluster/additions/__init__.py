"""Additions to a running cluster: Berth's programs, fleets, device plug-ins, machines of Karpenter."""
