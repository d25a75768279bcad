"""The HTTP servers of the operator: aggregated APIs, the debug API, the extender, the webhook."""
