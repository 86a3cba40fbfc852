"""Questions over HTTP: an ASGI application, and the Ray Serve application around it (`application.py`)."""
