PINNED = "graphrag_ray.engine.ray.pin_package"


def pin_package() -> None:
    """Load this package when a Ray worker process starts.

    Ray calls this function by name, before it puts the driver's working directory first on `sys.path`. That
    directory may contain a checkout of another version.
    """
