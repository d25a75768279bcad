"""`berth-operator crds apply`: applies the CustomResourceDefinitions of this version."""
