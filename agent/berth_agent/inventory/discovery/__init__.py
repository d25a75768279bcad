"""Devices that sysfs shows: RDMA NICs and FPGAs. Each kind is read as a plug-in is (`plugins.DeviceAgent`)."""
