"""The service as a Ray Serve application, for `graphrag-ray serve`, `serve run`, `serve deploy` and KubeRay's
RayService:

    applications:
      - name: graphrag
        route_prefix: /
        import_path: graphrag_ray.service.application:build
        args:
          root: s3://bucket/index
          settings: s3://bucket/settings.yaml    # or a mapping; left out: those of each snapshot
          overrides: [query.budget_tokens=200000]
          replicas: 2
          max_seconds: 120

`args` are the fields of `options.ServiceOptions`; `root` alone is needed. The token that clients must send is
the environment variable GRAPHRAG_RAY_TOKEN (or `token_env`) of the replicas' nodes; without one they do not
start, unless `allow_anonymous: true`. Keys of models are looked for in the replicas' environment, too. What
Serve's config says of the deployment `Questions` (autoscaling_config, ray_actor_options) goes before `args`;
with `autoscaling_config`, let `replicas` be the most, so that they share their limiter.
"""

import os
from typing import TYPE_CHECKING, Any

from graphrag_ray.service.service_options import ServiceOptions

if TYPE_CHECKING:
    from ray.serve import Application


def build(args: ServiceOptions) -> "Application":
    """Serve reads the annotation when it has the arguments of a config file."""
    from graphrag_ray.base.prompts import load_prompts
    from graphrag_ray.engine.ray.serving import Replica, application, log_with_serve

    # The code that comes to a cluster with the connection is without the files of a checkout.
    prompts = load_prompts()

    def app() -> Any:
        from graphrag_ray.service.access import find_token
        from graphrag_ray.service.app import create_app
        from graphrag_ray.service.service_metrics import DECLARED, OF_MODELS

        log_with_serve()
        here = Replica.here(several=args.replicas > 1)
        token = find_token(args, os.environ, here.ask_key)
        limiter = here.limiter if here.several else None
        return create_app(
            args,
            token,
            replica=here.name,
            limiter=limiter,
            ask_key=here.ask_key,
            prompts=prompts,
            recorder=here.metrics(DECLARED, OF_MODELS),
        )

    return application(
        app,
        replicas=args.replicas,
        most_requests=2 * (args.max_running + args.max_waiting) + 100,
        grace_s=args.grace_s,
        num_cpus=args.num_cpus,
    )
