"""The visibility API: why pods wait, who holds devices, and what is free, by an aggregated API."""
