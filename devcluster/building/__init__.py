"""Programs and images: found, fetched or built once, and kept in the user's cache."""
