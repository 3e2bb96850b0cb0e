"""What a service is told: where its database and its key are, and its limits. From the environment.

Workers are processes of their own, so `blindstep serve` hands its options on in environment variables;
a container is configured by the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from blindstep.errors import InvalidArgument
from blindstep.serve import keys
from blindstep.serve.keys import Secrets

PREFIX = "BLINDSTEP_"


@dataclass(frozen=True)
class Settings:
    """The settings of a service; none of them is secret but what the key file holds."""

    database: str = "sqlite:///blindstep.db"
    key_file: str = "blindstep.key"
    # Pages of these origins may send answers from a browser; "*" for all.
    origins: tuple[str, ...] = ()
    requests_per_second: float = 5_000.0  # of one API token, in one worker
    anonymous_per_second: float = 50.0  # of one address without a token, in one worker
    body_bytes: int = 64 * 1024
    bulk_bytes: int = 4 * 1024 * 1024
    secure_cookies: bool = False  # set it where the dashboard is served over https

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """The settings that BLINDSTEP_DATABASE, BLINDSTEP_KEY_FILE and so on give."""
        found = os.environ if environment is None else environment
        given: dict[str, object] = {}
        for name, kind in _KINDS.items():
            text = found.get(PREFIX + name.upper())
            if text is not None:
                try:
                    given[name] = kind(text)
                except ValueError:
                    raise InvalidArgument(f"{PREFIX}{name.upper()} cannot be read.") from None
        return cls(**given)  # type: ignore[arg-type]

    def environment(self) -> dict[str, str]:
        """The variables from which `from_environment` makes these settings."""
        texts = {name: getattr(self, name) for name in _KINDS}
        texts["origins"] = ",".join(self.origins)
        texts["secure_cookies"] = "1" if self.secure_cookies else "0"
        return {PREFIX + name.upper(): str(value) for name, value in texts.items()}

    def secrets(self, *, make: bool = False) -> Secrets:
        """The keys: of BLINDSTEP_KEY, or of the key file, which `make` makes if it is not there."""
        text = os.environ.get(PREFIX + "KEY")
        return keys.from_text(text) if text else keys.from_file(self.key_file, make=make)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_KINDS = {
    "database": str,
    "key_file": str,
    "origins": _listed,
    "requests_per_second": float,
    "anonymous_per_second": float,
    "body_bytes": int,
    "bulk_bytes": int,
    "secure_cookies": lambda text: text.lower() in ("1", "true", "yes"),
}
