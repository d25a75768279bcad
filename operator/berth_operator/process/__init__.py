"""The life of one operator process: standby, one term of leadership, the end; its health and its heap."""
