"""The web server of `kubectl berth dashboard`: a page on loopback, which reads with the rights of its user.

The server holds no credential. It relays a fixed list of GET requests to `kubectl proxy`.
"""
