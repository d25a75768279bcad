"""Objects of the API server other than the Device, and what they show of devices."""
