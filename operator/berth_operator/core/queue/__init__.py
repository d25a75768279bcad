"""Order pending pods and gangs, and decide which events wake them."""
