"""One cluster: its programs under a supervisor, its API, its nodes without a kubelet."""
