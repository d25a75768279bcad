"""The sources of the commands: the visibility API if it is served, otherwise the objects of the API server."""
