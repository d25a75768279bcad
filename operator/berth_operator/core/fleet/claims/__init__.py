"""ResourceClaims of other schedulers: which cards they hold, and which cards they may be given."""
