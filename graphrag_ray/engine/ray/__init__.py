PINNED = "graphrag_ray.engine.ray.pin_package"


def pin_package() -> None:
    """Runs when a Ray worker process starts, and does nothing but load this very package.

    Ray finds it by name. Later Ray puts the driver's working directory first on `sys.path`, which may be a
    checkout of another version.
    """
