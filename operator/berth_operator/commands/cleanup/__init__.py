"""`berth-operator cleanup`: stops Berth and takes off the cluster what Berth wrote, so that it can be uninstalled."""
