"""The HTTP extender: Berth decides and binds for the pods of kube-scheduler that request devices."""
