"""Devices that sysfs shows: RDMA NICs and FPGAs. Each kind is read like a plug-in (`plugins.DeviceAgent`)."""
