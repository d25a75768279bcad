"""Which devices ResourceClaims (`resource.k8s.io/v1`) get, decided as Kubernetes' own allocator does.

`docs/decisions/0033-claims.md` says which version's semantics these are, and how they are compared.
"""
