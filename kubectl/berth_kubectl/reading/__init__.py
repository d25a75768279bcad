"""What the commands read: the visibility API where it is served, else the objects of the API server."""
