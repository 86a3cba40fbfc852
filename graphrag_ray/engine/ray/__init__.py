PINNED = "graphrag_ray.engine.ray.pin_package"


def pin_package() -> None:
    """Runs when a worker process of Ray starts, and does nothing: it is found by name, so from then on the
    process has this very package. Later Ray puts the driver's current folder first on `sys.path`, which may
    be a checkout of another version."""
