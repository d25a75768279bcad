"""The steps before a Binding: allocate the pod's ResourceClaims, and bind its volumes."""
