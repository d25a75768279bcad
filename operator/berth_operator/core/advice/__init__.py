"""Answer what people ask: simulations, defragmentation, and reports of what is free."""
