"""Routes requests to the replicas of a service.

Serve sends this module to its proxies, which may not have this package, so it imports nothing from it.
"""

from __future__ import annotations

from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter


class LoadOnlyRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    """Chooses the less busy of two random replicas, regardless of their nodes.

    By default, Serve prefers replicas on the proxy's node as long as they accept requests. Our replicas
    accept every request and refuse excess ones themselves, so replicas on other nodes would get none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        anywhere = {"prefer_local_node_routing": False, "prefer_local_az_routing": False}
        super().__init__(*args, **(kwargs | anywhere))
