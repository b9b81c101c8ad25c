"""Files from the web, fetched safely, politely and within bounds; docs/fetching.md has the rules.

`requests.py` has requests, limits and outcomes. `client.py` fetches: it checks URLs and addresses (`addresses.py`), and
does only what hosts allow (`politeness.py`).

URLs are hostile input. A host name is resolved once, and each of its addresses is checked and pinned; this is repeated
for every redirect. Only http and https are fetched. Time, bytes and redirects are bounded. robots.txt and opt-out
headers are honoured.
"""
