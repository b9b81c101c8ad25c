"""Files from the web: fetched safely, politely and within bounds (docs/fetching.md)."""
