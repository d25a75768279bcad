"""`kubectl berth`: why a pod waits, who holds the cards, what is free, and what is wrong with an installation."""
