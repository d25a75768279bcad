"""Choose devices for ResourceClaims (`resource.k8s.io/v1`) as Kubernetes' own allocator does.

`docs/decisions/0033-claims.md` names the version whose semantics Berth follows, and how the two are compared.
"""
