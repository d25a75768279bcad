"""What precedes a Binding: the pod's ResourceClaims are allocated, and its volumes bound."""
