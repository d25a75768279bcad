"""`berth-operator cleanup`: stops Berth and removes what Berth wrote to the cluster, before an uninstallation."""
