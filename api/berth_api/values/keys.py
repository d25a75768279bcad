"""Keys of namespaced objects: `namespace/name`, as in client-go's caches."""


def join(namespace: str, name: str) -> str:
    """Return the key of an object."""
    return f"{namespace}/{name}"


def split(key: str) -> tuple[str, str]:
    """Return namespace and name of a key."""
    namespace, _, name = key.partition("/")
    return namespace, name
