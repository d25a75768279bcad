"""Code that Berth's aggregated APIs share: access, options, and lists and watches that work as on the API server."""
