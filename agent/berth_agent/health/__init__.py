"""Which devices must not be allocated, why, and until when."""
