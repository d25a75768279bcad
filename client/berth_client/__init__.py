"""The client of the API server that operator and agent share: login, requests, lists and watches."""
