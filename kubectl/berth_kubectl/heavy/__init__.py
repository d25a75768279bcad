"""Modules that load much, and that commands therefore load only when they run (`berth_kubectl.loading`)."""
