"""GPUs of another vendor for Berth: a complete example."""
