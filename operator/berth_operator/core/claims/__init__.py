"""ResourceClaims: dynamic resource allocation as Kubernetes 1.37.1 does it."""
