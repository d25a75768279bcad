"""An inventory without hardware: the nodes of a fleet file."""
