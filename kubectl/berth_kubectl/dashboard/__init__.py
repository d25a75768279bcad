"""The web server of `kubectl berth dashboard`: a page on loopback, and what it reads with the rights of its user.

The server holds no credential: it relays a fixed list of GET requests to `kubectl proxy`.
"""
