"""Signing in through a provider of identities (OpenID Connect), beside tokens.

The code flow with PKCE. Authlib makes the request and reads the provider's answer; the signature is
checked with the keys that the provider publishes, by one of the algorithms below and no other; and the
claims by Authlib, for the issuer, the client and the nonce of this very request. What the provider says
of somebody's roles (one claim) makes them an admin, a viewer, or nobody. Nothing else of them is kept
than a keyed hash and their name, which the audit log shows.

The extra `blindstep[oidc]` is needed where BLINDSTEP_OIDC_ISSUER is set, and is imported only there.
"""

from __future__ import annotations

import hmac
import importlib
import ipaddress
import os
import secrets as random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from blindstep.errors import BlindstepError, InvalidArgument
from blindstep.serve.access import Principal, TooMany
from blindstep.serve.keys import Secrets

if TYPE_CHECKING:
    from blindstep.serve.service import Settings

# Where the provider sends people back to.
RETURN = "/login/return"
# Signatures that are believed: of keys of which the provider keeps one half to itself.
_ALGORITHMS = [
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
]
# Seconds: to sign in, for the provider to answer, and between two times that its description, its keys,
# or a provider that was away are asked for. How much its clock may be off, and sign-ins at one time.
_TO_SIGN_IN, _ANSWER, _KNOWN, _AGAIN = 600, 5.0, 3600.0, 10.0
# How long somebody waits while another one asks it, so that a provider that is away stops nobody else.
_CLOCK, _AT_ONCE, _IN_LINE = 60, 4, 0.5


class NotSignedIn(BlindstepError):
    """Somebody was not signed in; `status` is that of the response."""

    def __init__(self, message: str, status: int = 401) -> None:
        super().__init__(message)
        self.status = status


class UnderWay(NamedTuple):
    """A sign-in that has begun: where to send the browser, and what it brings back in a cookie."""

    address: str
    cookie: str


class Provider:
    """A provider of identities, as the settings name it."""

    def __init__(self, settings: Settings, secrets: Secrets) -> None:
        """Nothing is asked of it yet; settings that cannot work are refused."""
        require_extra()
        self._settings, self._secrets = settings, secrets
        for name, value in (
            ("OIDC_CLIENT", settings.oidc_client),
            ("ADDRESS", settings.address),
        ):
            if not value:
                raise InvalidArgument(f"BLINDSTEP_OIDC_ISSUER needs BLINDSTEP_{name} beside it.")
        for address in (settings.oidc_issuer, settings.address):
            if not _is_private(address):
                raise InvalidArgument(
                    f"{address!r} must be an https address: people are signed in there."
                )
        self._client_secret = _client_secret(settings.oidc_secret_file)
        self._described: dict[str, Any] = {}
        self._keys: dict[str, Any] = {}
        self._asked = {"description": -float("inf"), "keys": -float("inf")}
        self._one, self._at_once = threading.Lock(), threading.BoundedSemaphore(_AT_ONCE)

    # -- the two halves of a sign-in --------------------------------------------------------------

    def begin(self) -> UnderWay:
        """Send somebody to the provider."""
        described = self._description()
        state, nonce, verifier = (random.token_urlsafe(32) for _ in range(3))
        with self._session() as session:
            address, _ = session.create_authorization_url(
                described["authorization_endpoint"],
                state=state,
                code_verifier=verifier,
                nonce=nonce,
            )
        content = f"{state}.{nonce}.{verifier}.{int(time.time()) + _TO_SIGN_IN}"
        return UnderWay(address, f"{content}.{self._signature(content)}")

    def finish(self, sent: Mapping[str, str], cookie: str) -> Principal:
        """Who has come back from the provider with this query; anybody who may not enter is refused."""
        state, nonce, verifier = self._begun(cookie)
        if not hmac.compare_digest(sent.get("state", "").encode(), state.encode()):
            raise NotSignedIn("this sign-in was not begun in this browser: try again.")
        if sent.get("iss", self._settings.oidc_issuer) != self._settings.oidc_issuer:
            raise NotSignedIn("somebody else than the provider has answered.")
        if "code" not in sent:
            raise NotSignedIn("the provider has not signed you in.")
        if not self._at_once.acquire(blocking=False):  # each may wait for the provider
            raise TooMany("many people are signing in: try again in a second.")
        try:
            return self._member(self._claims(sent["code"], nonce, verifier))
        finally:
            self._at_once.release()

    def _begun(self, cookie: str) -> list[str]:
        """State, nonce and verifier of a sign-in that was begun here and not too long ago."""
        content, _, signature = cookie.rpartition(".")
        parts = content.split(".")
        expected = self._signature(content).encode()
        if not hmac.compare_digest(expected, signature.encode()) or len(parts) != 4:
            raise NotSignedIn("this sign-in was not begun in this browser: try again.")
        if int(parts[3]) < time.time():
            raise NotSignedIn("that took too long: try again.")
        return parts[:3]

    def _signature(self, content: str) -> str:
        return self._secrets.sign(content.encode()).hex()

    def _claims(self, code: str, nonce: str, verifier: str) -> Mapping[str, Any]:
        """What the provider says of whom it gave this code."""
        import requests
        from authlib.common.errors import AuthlibBaseError
        from authlib.oidc.core import CodeIDToken
        from joserfc.errors import JoseError

        issuer, client = self._settings.oidc_issuer, self._settings.oidc_client
        wanted = {
            "iss": {"essential": True, "value": issuer},
            "aud": {"essential": True, "value": client},
        }
        try:
            with self._session() as session:
                endpoint = self._description()["token_endpoint"]
                told = session.fetch_token(endpoint, code=code, code_verifier=verifier)
            signed = self._verified(told["id_token"])
            beside = {"nonce": nonce, "client_id": client, "access_token": told.get("access_token")}
            claims = CodeIDToken(signed.claims, signed.header, wanted, beside)
            claims.validate(leeway=_CLOCK)
            if not isinstance(claims["sub"], str):
                raise ValueError
        except (requests.RequestException, OSError) as error:
            raise NotSignedIn("the provider does not answer: try again.", 502) from error
        except (AuthlibBaseError, JoseError, KeyError, TypeError, ValueError) as error:
            raise NotSignedIn("what the provider says of you is not valid here.") from error
        return claims

    def _verified(self, token: str) -> Any:
        """The content of a token that one of the provider's keys has signed."""
        from joserfc import jws, jwt
        from joserfc.errors import InvalidKeyIdError
        from joserfc.jwk import KeySet

        registry = jws.JWSRegistry(algorithms=_ALGORITHMS, strict_check_header=False)
        for fresh in (False, True):  # a key that is not known may be a new one
            keys = KeySet.import_key_set(self._published(fresh))
            try:
                return jwt.decode(token, keys, registry=registry)
            except (InvalidKeyIdError, ValueError):
                if fresh:
                    raise
        raise AssertionError

    def _member(self, claims: Mapping[str, Any]) -> Principal:
        """The admin or viewer that somebody's roles make them."""
        roles, settings = roles_of(claims, self._settings.oidc_claim), self._settings
        scope = "admin" if roles & set(settings.oidc_admins) else "viewer"
        if not roles & {*settings.oidc_admins, *settings.oidc_viewers}:
            raise NotSignedIn("your account has no role here: ask whoever runs this service.", 403)
        known = self._secrets.person(settings.oidc_issuer, claims["sub"]).hex()[:12]
        named = (claims.get(each) for each in ("email", "preferred_username", "name", "sub"))
        label = next(each for each in named if isinstance(each, str) and each)
        return Principal(f"oidc{known}", scope, None, "".join(filter(str.isprintable, label))[:100])

    # -- what it publishes ------------------------------------------------------------------------

    def _description(self) -> dict[str, Any]:
        """Its description of itself, an hour old at most."""
        issuer = self._settings.oidc_issuer
        where = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        found = self._described = self._read("description", where, self._described, _KNOWN)
        ends = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        if found.get("issuer") != issuer or not all(_is_private(found.get(end)) for end in ends):
            self._described = {}
            raise NotSignedIn(
                "the provider's description is not that of BLINDSTEP_OIDC_ISSUER.", 502
            )
        return found

    def _published(self, fresh: bool) -> Any:
        """The keys it signs with; with `fresh`, ten seconds old at most."""
        where = self._description()["jwks_uri"]
        self._keys = self._read("keys", where, self._keys, _AGAIN if fresh else _KNOWN)
        return self._keys

    def _read(self, what: str, where: str, known: dict[str, Any], lasts: float) -> dict[str, Any]:
        """Something that it publishes: what is known, for so long. One asks, and nobody too often."""
        import requests

        if not self._one.acquire(timeout=_IN_LINE):
            raise NotSignedIn("the provider does not answer: try again.", 502)
        try:
            since = time.monotonic() - self._asked[what]
            if known and since < lasts:
                return known
            if not known and since < min(_AGAIN, lasts):  # it was away a moment ago
                raise NotSignedIn("the provider does not answer: try again.", 502)
            self._asked[what] = time.monotonic()
            answer = requests.get(where, timeout=_ANSWER)
            answer.raise_for_status()
            found = answer.json()
            if not isinstance(found, dict) or not found:
                raise ValueError
            return found
        except (requests.RequestException, ValueError) as error:
            raise NotSignedIn("the provider does not answer: try again.", 502) from error
        finally:
            self._one.release()

    def _session(self) -> Any:
        """A client of the provider, by Authlib."""
        from authlib.integrations.requests_client import OAuth2Session

        takes = self._described.get("token_endpoint_auth_methods_supported", [])
        how = "client_secret_basic"
        if not self._client_secret:
            how = "none"
        elif takes and how not in takes:
            how = "client_secret_post"
        return OAuth2Session(
            self._settings.oidc_client,
            self._client_secret or None,
            token_endpoint_auth_method=how,
            scope=self._settings.oidc_scopes,
            redirect_uri=self._settings.address.rstrip("/") + RETURN,
            code_challenge_method="S256",
            default_timeout=_ANSWER,
        )


def roles_of(claims: Mapping[str, Any], name: str) -> set[str]:
    """Somebody's roles: a claim of this name, or one inside others, with dots between their names."""
    found: Any = claims
    if name in claims:
        found = claims[name]
    else:
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    roles = [found] if isinstance(found, str) else found
    return {each for each in roles if isinstance(each, str)} if isinstance(roles, list) else set()


def require_extra() -> None:
    """Refuse, in one line, to sign people in without what that needs."""
    try:
        importlib.import_module("authlib.integrations.requests_client")
        importlib.import_module("joserfc")
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"BLINDSTEP_OIDC_ISSUER needs {error.name}: pip install '.[oidc]' in a copy of the "
            "repository."
        ) from None


def _is_private(address: object) -> bool:
    """Whether nobody on the way can read or change what is said there: https, or this machine."""
    try:
        parts = urlsplit(address if isinstance(address, str) else "")
        host = parts.hostname or ""
    except ValueError:
        return False
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost"
    return bool(host) and (parts.scheme == "https" or (here and parts.scheme == "http"))


def _client_secret(file: str) -> str:
    """The client's secret, of BLINDSTEP_OIDC_SECRET or of a file; none for a public client."""
    if not file:
        return os.environ.get("BLINDSTEP_OIDC_SECRET", "")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read ({error.strerror}).") from None
