"""Code that the operator's HTTPS servers share: certificates, and reviews of clients by the API server."""
