"""The HTTP API: routes as data, their handlers, and the server that runs them."""
