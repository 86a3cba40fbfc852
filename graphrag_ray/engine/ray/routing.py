"""Chooses the replica of a service that gets a request.

Serve sends this module to its proxies, which may lack our package, so it imports nothing from it.
"""

from __future__ import annotations

from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter


class ByLoadAlone(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    """Chooses the less busy of two replicas on any node.

    Serve prefers replicas on the node of its only proxy while they accept requests. Our replicas refuse
    excess requests themselves, so those on other nodes would get none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        anywhere = {"prefer_local_node_routing": False, "prefer_local_az_routing": False}
        super().__init__(*args, **(kwargs | anywhere))
