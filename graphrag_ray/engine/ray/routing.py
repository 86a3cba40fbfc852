"""Which replica of a service gets a request. Serve sends this module along to its proxies, which may lack our
package: it imports nothing of it."""

from __future__ import annotations

from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter


class ByLoadAlone(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    """The less busy one of two, wherever it runs.

    Serve prefers replicas on the node of its proxy, of which there is one, for as long as they take requests:
    as ours refuse themselves what is too much, those on other nodes would get none.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        anywhere = {"prefer_local_node_routing": False, "prefer_local_az_routing": False}
        super().__init__(*given, **(named | anywhere))
