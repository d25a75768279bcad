"""Which devices must not be handed out, why, and until when."""
