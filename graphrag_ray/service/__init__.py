"""Question answering over HTTP: an ASGI application, and the Ray Serve application around it."""
