"""Choose devices for ResourceClaims (`resource.k8s.io/v1`) as Kubernetes' own allocator does.

allocation   which devices of a node the claims of a pod get
pools        the devices of a pool, and what is left of the counters that they share
matching     which devices the selectors match
objects      claims, classes, slices and taints as values
selectors    the CEL expressions that select devices
bounds       how much time and memory claims may take

`docs/decisions/0033-claims.md` names the version whose semantics Berth follows, and how the two are compared.
"""
