"""The life of one operator process: standby, one term of leadership, exit. Also its health and its heap."""
