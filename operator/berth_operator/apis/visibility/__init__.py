"""The visibility API, an aggregated API: why pods wait, who holds devices, and what is free."""
