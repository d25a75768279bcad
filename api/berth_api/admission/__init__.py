"""What admission changes in pods; the policies in `manifests` do the same."""
