"""Changes that admission makes to pods. The policies in `manifests` do the same."""
