"""Files from the web, fetched safely, politely and within bounds; docs/fetching.md has the rules.

URLs are hostile input. A name is resolved once, every address of it is checked and pinned, and on every redirect again;
only http and https are fetched. Time, bytes and redirects are bounded. robots.txt and opt-out headers are honoured.
"""
