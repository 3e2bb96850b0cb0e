"""A small provider of identities (OpenID Connect) on loopback, which a test can make lie."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

CLIENT, SECRET = "blindstep", "the client's secret"


def new_key(kind: str = "RS256") -> Any:
    """A key to sign with."""
    named = {"kid": secrets.token_hex(4)}
    return (
        RSAKey.generate_key(2048, named) if kind == "RS256" else ECKey.generate_key("P-256", named)
    )


@dataclass
class Provider:
    """The provider. `claims` are those of whoever signs in next; the rest can be spoiled."""

    port: int = 0
    host: str = "127.0.0.1"
    claims: dict[str, Any] = field(default_factory=dict)
    key: Any = field(default_factory=new_key)
    algorithm: str = "RS256"
    published: list[Any] = field(default_factory=list)
    # What a test changes before it is sent: the description, the claims, the signed token.
    describe: Callable[[dict[str, Any]], dict[str, Any]] = lambda found: found
    claim: Callable[[dict[str, Any]], dict[str, Any]] = lambda found: found
    sign: Callable[[dict[str, Any]], str] | None = None
    away: bool = False
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def issuer(self) -> str:
        return f"http://{self.host}:{self.port}"

    def description(self) -> dict[str, Any]:
        return self.describe(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256", "ES256"],
            }
        )

    def keys(self) -> dict[str, Any]:
        published = self.published or [self.key]
        return {"keys": [each.as_dict(private=False) for each in published]}

    def authorize(self, query: dict[str, str]) -> str:
        """Somebody has signed in: where their browser goes next."""
        code = secrets.token_hex(8)
        self.codes[code] = query
        back = {"code": code, "state": query["state"], "iss": self.issuer}
        return f"{query['redirect_uri']}?{urlencode(back)}"

    def token(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        """The token for a code, once, for who asked for it."""
        asked = self.codes.pop(form.get("code", ""), None)
        basic = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
        wrong = [
            name
            for name, right in {
                "code": asked is not None,
                "client": basic == f"{CLIENT}:{SECRET}",
                "verifier": asked is not None and asked.get("code_challenge") == challenge,
                "redirect": asked is not None and asked["redirect_uri"] == form.get("redirect_uri"),
            }.items()
            if not right
        ]
        self.refused += wrong
        if asked is None or wrong:
            return None
        now = int(time.time())
        claims = self.claim(
            {
                "iss": self.issuer,
                "aud": asked["client_id"],
                "exp": now + 300,
                "iat": now,
                "nonce": asked["nonce"],
                **self.claims,
            }
        )
        head = {"alg": self.algorithm, "kid": self.key.kid}
        signed = self.sign(claims) if self.sign else jwt.encode(head, claims, self.key)
        return {"access_token": "opaque", "token_type": "Bearer", "id_token": signed}


@contextlib.contextmanager
def identity_provider() -> Iterator[Provider]:
    """A provider that listens on this machine until the end of the block."""
    made = Provider()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            made.asked.append(parts.path)
            if made.away:
                return self.say(503, {})
            if parts.path == "/authorize":
                self.send_response(302)
                self.send_header("Location", made.authorize(query))
                self.end_headers()
                return None
            found = {
                "/.well-known/openid-configuration": made.description,
                "/keys": made.keys,
            }.get(parts.path)
            return self.say(404, {}) if found is None else self.say(200, found())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            made.asked.append(self.path)
            told = made.token(form, self.headers.get("Authorization", ""))
            if told is None:
                return self.say(400, {"error": "invalid_grant"})
            return self.say(200, told)

        def say(self, status: int, content: dict[str, Any]) -> None:
            said = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        made.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
