"""What the HTTPS servers of the operator share: certificates, and reviews of their clients by the API server."""
