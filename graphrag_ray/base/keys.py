"""Find API keys and remove them from output.

Settings name an environment variable or a file, never the key itself. Keys are passed as `SecretStr`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pydantic import SecretStr

from graphrag_ray.base.errors import NoEndpoint
from graphrag_ray.base.urls import display_url

if TYPE_CHECKING:
    from graphrag_ray.base.connection_settings import Endpoint

_MIN_SECRET_CHARS = 4
"""Shorter values are placeholders ("x", "no") and also match ordinary words."""
_KEY_PATTERN = re.compile(r"\b(sk-[A-Za-z0-9_*.-]{6,}|(?<=Bearer )[A-Za-z0-9._~+/=*-]{6,})")
STARS = "***"


def find_key(
    endpoint: Endpoint,
    environ: Mapping[str, str],
    ask: Callable[[str], str | None] | None = None,
) -> SecretStr | None:
    """Find the API key of an endpoint in the environment or its key file, or call `ask`.

    Returns None if the endpoint needs no key. Blocks while it reads the file or waits for `ask`.

    Args:
        ask: Returns the key for the name of the variable or, without a variable, for the path of the file.

    Raises:
        NoEndpoint: No key was found. The message names the variable, the file and this node.
    """
    variable, path = endpoint.api_key_env, endpoint.api_key_file
    if variable is None and path is None:
        return None
    if variable is not None and (key := environ.get(variable, "").strip()):
        return SecretStr(key)
    problems = [] if variable is None else [f"{variable} is not set"]
    if path is not None:
        try:
            if key := Path(path).expanduser().read_text("utf-8").strip():
                return SecretStr(key)
            problems.append(f"{path} is empty")
        except (OSError, UnicodeDecodeError) as e:
            problems.append(f"{path} cannot be read ({getattr(e, 'strerror', None) or 'not text'})")
    name = variable or str(path)
    if ask is not None and (key := (ask(name) or "").strip()):
        return SecretStr(key)
    raise NoEndpoint(
        f"No API key for {display_url(endpoint.base_url)} on {socket.gethostname()}: "
        f"{' and '.join(problems)}. "
        "Provide the key on that machine. If the endpoint needs no key, use --api-key-env null "
        "(`api_key_env: null` in the settings)."
    )


def scrub(text: str, secrets: Iterable[SecretStr | str | None]) -> str:
    """Replace secrets, and anything that looks like a key, with stars."""
    for secret in secrets:
        value = secret.get_secret_value() if isinstance(secret, SecretStr) else secret
        if value and len(value) >= _MIN_SECRET_CHARS:
            text = text.replace(value, STARS).replace(quote(value, safe=""), STARS)
    return _KEY_PATTERN.sub(STARS, text)
