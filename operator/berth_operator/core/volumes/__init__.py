"""Claims and volumes: what pods mount, where it can be reached, and what a decision promises."""
