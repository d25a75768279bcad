"""What every program of Berth does at its start: read its settings, configure its log, say its version."""
