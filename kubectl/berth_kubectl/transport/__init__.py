"""Requests to the API server through kubectl, which knows every login, context and impersonation.

Only GET requests are sent.
"""
