"""What the operator serves over HTTP: aggregated APIs, the debug API, the extender, the webhook."""
