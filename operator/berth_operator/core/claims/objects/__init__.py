"""The objects of `resource.k8s.io` as values: claims, classes, slices, taints, quantities."""
