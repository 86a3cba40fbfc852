"""The service as a Ray Serve application, for `graphrag-ray serve`, `serve run`, `serve deploy` and KubeRay:

    applications:
      - name: graphrag
        route_prefix: /
        import_path: graphrag_ray.service.application:build
        args:
          root: s3://bucket/index
          settings: s3://bucket/settings.yaml    # or a mapping; by default the settings in each snapshot
          overrides: [query.budget_tokens=200000]
          replicas: 2
          max_seconds: 120

`args` are the fields of `ServiceOptions`; only `root` is required. Replicas read model keys and the token of
clients (GRAPHRAG_RAY_TOKEN, or `token_env`) from the environment of their nodes. They do not start without a
token unless `allow_anonymous` is true. The Serve config of the deployment `Questions`
(autoscaling_config, ray_actor_options) overrides `args`. With `autoscaling_config`, set `replicas` to the
maximum, so that replicas share their limiter.
"""

import os
from typing import TYPE_CHECKING, Any

from graphrag_ray.service.service_options import ServiceOptions

if TYPE_CHECKING:
    from ray.serve import Application


def build(args: ServiceOptions) -> "Application":
    """Build the application. Serve validates `args` by their annotation."""
    from graphrag_ray.base.prompts import load_prompts
    from graphrag_ray.engine.ray.serving import Replica, build_application, log_with_serve

    # A checkout that Ray copies to a cluster lacks its data files, so load the prompts here.
    prompts = load_prompts()

    def app() -> Any:
        from graphrag_ray.service.access import find_token
        from graphrag_ray.service.app import create_app
        from graphrag_ray.service.service_metrics import MODEL_METRICS, SERVICE_METRICS

        log_with_serve()
        replica = Replica.current(has_peers=args.replicas > 1)
        return create_app(
            args,
            find_token(args, os.environ, replica.fetch_key),
            replica=replica.name,
            limiter=replica.limiter if replica.has_peers else None,
            ask_key=replica.fetch_key,
            prompts=prompts,
            recorder=replica.metrics(SERVICE_METRICS, MODEL_METRICS),
        )

    return build_application(
        app,
        replicas=args.replicas,
        max_requests=2 * (args.max_running + args.max_waiting) + 100,
        grace_s=args.grace_s,
        num_cpus=args.num_cpus,
    )
