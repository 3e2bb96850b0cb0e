"""The files for people who run the service: each is read by who will read it, or by its schema."""

import contextlib
import json
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import jsonschema
import kubernetes_validate
import promql_parser
import pytest
import yaml

from blindstep.serve import traces
from blindstep.serve.database import Database
from blindstep.serve.service import PREFIX, Settings
from blindstep.serve.voting import Status
from postgres import as_user
from service_process import free_port
from serving import SECRETS, SPEC, Bench

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
ALERTS = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())
PANELS = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
SETTINGS = set(Settings().environment()) | {f"{PREFIX}KEY"}

_TEXT, _LABELS = {"type": "string", "minLength": 1}, {"type": "object"}
RULES = {
    "type": "object",
    "required": ["groups"],
    "additionalProperties": False,
    "properties": {
        "groups": {
            "items": {
                "required": ["name", "rules"],
                "additionalProperties": False,
                "properties": {
                    "name": _TEXT,
                    "rules": {
                        "minItems": 1,
                        "items": {
                            "required": ["alert", "expr", "for", "labels", "annotations"],
                            "additionalProperties": False,
                            "properties": {
                                "alert": {"pattern": "^[A-Za-z]+$"},
                                "expr": _TEXT,
                                "for": {"pattern": "^[0-9]+[smh]$"},
                                "labels": _LABELS,
                                "annotations": {"required": ["summary"]},
                            },
                        },
                    },
                },
            }
        }
    },
}


def test_compose_follows_its_schema_and_names_settings_that_there_are():
    read = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*read, str(COMPOSE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert set(services["migrate"]["environment"]) <= SETTINGS
    assert services["blindstep"]["depends_on"].keys() == {"migrate"}


@pytest.mark.parametrize("one", KUBERNETES, ids=lambda one: one["kind"])
def test_kubernetes_would_take_each_object(one):
    kubernetes_validate.validate(one, "1.31", strict=True)
    template = one["spec"].get("template", {})
    for container in template.get("spec", {}).get("containers", []):
        assert {each["name"] for each in container["env"]} <= SETTINGS
        assert template["spec"]["securityContext"]["runAsNonRoot"]
        paths = [container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")]
        assert set(paths) <= {"/healthz", "/readyz"}


@pytest.mark.parametrize("broken", [{"replicas": "two"}, {"sleector": {}}])
def test_an_object_with_a_slip_would_be_found(broken):
    wrong = KUBERNETES[1] | {"spec": KUBERNETES[1]["spec"] | broken}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    unit = (DEPLOY / "blindstep.service").read_text()
    names = re.findall(rf"{PREFIX}[A-Z_]+", unit)
    assert set(names) <= SETTINGS
    for section in ("[Unit]", "[Service]", "[Install]"):
        assert section in unit
    if (analyze := shutil.which("systemd-analyze")) is not None:
        (tmp_path / "blindstep.service").write_text(unit)
        verify = [analyze, "verify", "--man=no", str(tmp_path / "blindstep.service")]
        said = subprocess.run(verify, capture_output=True, text=True).stderr
        assert [line for line in said.splitlines() if "blindstep.service" in line] == []


def names_in(expression):
    """The metrics of an expression, which is read by a parser of Prometheus' own language."""
    promql_parser.parse(expression)
    found = set(re.findall(r"\b(?:blindstep_\w+|up)\b", expression))
    assert found, expression
    return found - {"up"}


def test_alerts_and_panels_ask_for_metrics_that_there_are(client):
    client.post("/v1/studies", json=SPEC)
    client.app.state.service.lookout.look()
    client.post(f"/v1/studies/{'0' * 16}/questions", json={"person": "x"})
    exposed = set(re.findall(r"^# TYPE (\S+)", client.get("/metrics").text, re.M))
    exposed |= {f"{name}_bucket" for name in exposed}
    jsonschema.validate(ALERTS, RULES)
    asked = [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]
    asked += [target["expr"] for panel in PANELS for target in panel["targets"]]
    for expression in asked:
        missing = names_in(expression) - exposed
        assert not missing, (expression, exposed)
    for panel in PANELS:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert len({other["id"] for other in PANELS}) == len(PANELS)


def test_the_container_tells_podman_when_it_is_ready():
    said = (DEPLOY.parent / "Containerfile").read_text()
    assert "/readyz" in said
    assert 'ENTRYPOINT ["blindstep", "serve"' in said


@pytest.fixture
def collector():
    """Somebody who takes traces, and what came."""
    came = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self):
            came.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Takes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", came
        finally:
            server.shutdown()
            thread.join()


def test_traces_go_where_the_usual_variables_say_and_hold_nothing_of_people(
    client, collector, monkeypatch
):
    address, came = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "votes")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setattr(traces, "_tracer", traces.tracer())
    study = client.post("/v1/studies", json=SPEC).json()["id"]
    asked = client.post(f"/v1/studies/{study}/questions", json={"person": "anna"}).json()
    client.post("/v1/answers", json={"token": asked["token"], "value": 1})
    traces.flush()
    told = b"".join(content for _, content in came)
    assert {path for path, _ in came} == {"/v1/traces"}
    assert b"votes" in told
    assert b"/v1/studies" in told
    for secret in (b"questions", b"answers", b"anna", asked["token"].encode(), study.encode()):
        assert secret not in told


def test_without_the_variables_there_are_no_traces(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert traces.tracer() is None


PGBOUNCER = """[databases]
* = host=127.0.0.1 port={port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
auth_type = any
pool_mode = transaction
max_client_conn = 100
default_pool_size = 4
"""


@contextlib.contextmanager
def pgbouncer(server_port):
    """A real one, in transaction mode, with fewer connections than are asked for; gives its port."""
    own, folder = free_port(), Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    settings = folder / "settings"
    settings.write_text(PGBOUNCER.format(port=server_port, own=own))
    with subprocess.Popen(["pgbouncer", "-q", str(settings)], **as_user()) as process:
        try:
            until = time.monotonic() + 30
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", own)):
                    break
                assert time.monotonic() < until
                time.sleep(0.05)
            yield own
        finally:
            process.terminate()
            shutil.rmtree(folder)


@contextlib.contextmanager
def as_strict(server_port):
    """What of PgBouncer refuses clients: a startup packet with parameters that it does not track."""

    class Between(socketserver.BaseRequestHandler):
        def handle(self):
            head = self.request.recv(4, socket.MSG_WAITALL)
            packet = self.request.recv(int.from_bytes(head, "big") - 4, socket.MSG_WAITALL)
            if packet[:4] == b"\x04\xd2\x16\x2f":  # TLS: no
                self.request.sendall(b"N")
                return self.handle()
            names = set(packet[4:].split(b"\0")[0:-2:2])
            if not names <= {b"user", b"database", b"application_name", b"client_encoding"}:
                return None
            with socket.create_connection(("127.0.0.1", server_port)) as onward:
                onward.sendall(head + packet)
                back = threading.Thread(target=carry, args=(onward, self.request), daemon=True)
                back.start()
                carry(self.request, onward)
                back.join()
            return None

    def carry(one, other):
        with contextlib.suppress(OSError):
            while part := one.recv(65536):
                other.sendall(part)
            other.shutdown(socket.SHUT_WR)

    class Listens(socketserver.ThreadingTCPServer):
        daemon_threads = True  # a test that fails leaves connections open: nobody waits for them

    with Listens(("127.0.0.1", 0), Between) as between:
        thread = threading.Thread(target=between.serve_forever)
        thread.start()
        try:
            yield between.server_address[1]
        finally:
            between.shutdown()
            thread.join()


POOLERS = [as_strict, *([pgbouncer] if shutil.which("pgbouncer") else [])]


@pytest.mark.parametrize("pooler", POOLERS)
def test_a_study_runs_through_a_pooler(pooler, empty_postgres):
    """(0.2 was refused: "unsupported startup parameter: options".)"""
    port = int(re.search(r":(\d+)/", empty_postgres)[1])
    with pooler(port) as own:
        database = Database(empty_postgres.replace(f":{port}/", f":{own}/"))
        database.migrate()
        database.check(SECRETS)
        bench = Bench(database)
        study, number = bench.create()
        bench.run(study, number)
        assert bench.studies.row(study)["status"] == "finished"
        (seat,) = bench.ask(study, "anna")
        assert seat.status is Status.OVER
        with database.begin() as connection:
            told = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout")
            assert told.scalar_one() == "2s"
        # Of a transaction, not of the session, which is somebody else's the next time.
        driver = database.engine.raw_connection()
        told = driver.driver_connection.execute("SHOW idle_in_transaction_session_timeout")
        assert told.fetchone() == ("0",)
        driver.close()
        database.close()
