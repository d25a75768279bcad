"""Modules that take long to load. Commands load them only when they run (`berth_kubectl.loading`)."""
