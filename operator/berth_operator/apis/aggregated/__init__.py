"""What the aggregated APIs of Berth share: access, options, lists and watches as those of the API server."""
