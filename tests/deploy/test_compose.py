"""docker-compose.yml and what it mounts: valid, closed to others by default, and in step with the server."""

import json
import re
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from app.metrics import Metrics
from app.settings import Settings, variable

ROOT = Path(__file__).parent.parent.parent
# From the Compose Specification, https://github.com/compose-spec/compose-spec, Apache-2.0.
SCHEMA = json.loads(Path(__file__).with_name("compose.schema.json").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
SERVERS = {name: service for name, service in SERVICES.items() if "build" in service}
DASHBOARD = json.loads((ROOT / "deploy/grafana/pushforward.json").read_text())
DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")


def plain(value):
    """The value with the defaults of variables put in, as Compose does when none is set."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    return DEFAULT.sub(r"\1", value) if isinstance(value, str) else value


def profile(name):
    """The file as it is with this profile, or with none."""
    chosen = {key: s for key, s in SERVICES.items() if not s.get("profiles") or name in s["profiles"]}
    return plain({**COMPOSE, "services": chosen})


@pytest.mark.parametrize(
    ("name", "services"),
    [
        (None, {"pushforward"}),
        ("gpu", {"pushforward", "gpu"}),
        ("metrics", {"pushforward", "prometheus", "grafana"}),
    ],
)
def test_each_profile_fits_the_schema_and_names_only_what_there_is(name, services):
    file = profile(name)
    jsonschema_rs.validator_for(SCHEMA).validate(file)
    assert set(file["services"]) == services
    for service in file["services"].values():
        assert set(service.get("secrets", ())) <= set(file["secrets"])
        assert set(service.get("depends_on", ())) <= services
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in file["volumes"]


def test_the_schema_refuses_what_is_none():
    file = profile(None)
    file["services"]["pushforward"]["read_onyl"] = True
    with pytest.raises(jsonschema_rs.ValidationError, match="read_onyl"):
        jsonschema_rs.validator_for(SCHEMA).validate(file)


def test_ports_are_on_loopback_and_taken_once():
    ports = [port for service in plain(SERVICES).values() for port in service["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


@pytest.mark.parametrize("name", SERVERS)
def test_servers_have_keys_limits_and_nothing_to_write_to_but_volumes(name):
    service = plain(SERVERS[name])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["mem_limit"]
    assert service["cpus"]
    assert service["environment"][variable("api_keys_file")] == f"/run/secrets/{service['secrets'][0]}"
    assert service["healthcheck"]["test"] == ["CMD", "python", "-m", "app.health"]


@pytest.mark.parametrize("name", SERVERS)
def test_the_end_is_waited_for(name):
    environment = SERVERS[name]["environment"]
    names = {variable(field): field for field in Settings.model_fields}
    settings = Settings(**{names[key]: value for key, value in environment.items() if key in names})
    assert int(SERVERS[name]["stop_grace_period"].removesuffix("s")) > settings.drain_s + settings.shutdown_s


def test_only_the_gpu_profile_asks_for_gpus():
    asking = {name for name, service in SERVICES.items() if "deploy" in service}
    assert asking == {"gpu"}
    (device,) = SERVICES["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_no_two_servers_share_a_directory_of_models():
    volumes = [volume for service in SERVERS.values() for volume in service["volumes"]]
    assert len(set(volumes)) == len(volumes)


def test_prometheus_asks_the_servers_with_the_key_that_it_is_given():
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{SERVICES['prometheus']['secrets'][0]}"
    assert set(job["dns_sd_configs"][0]["names"]) == set(SERVERS)


def expressions():
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*panels, *(entry["query"]["query"] for entry in DASHBOARD["templating"]["list"])]


@pytest.fixture(scope="module")
def shown():
    """The series that the server shows, each with its labels: everything that it measures, measured once."""
    from fastapi.testclient import TestClient

    from app.main import create_app

    with TestClient(create_app(Settings(models=("stacked-rnn",), warm=False))) as client:
        body = {"model": "stacked-rnn", "inputs": {"x": [[[0.0] * 4]]}}
        assert client.post("/evaluate", json=body).status_code == 200
        assert client.post("/jacobian", json={**body, "of": "y", "wrt": "x"}).status_code == 200
        page = client.get("/metrics").text
    metrics = Metrics()
    metrics.abandoned.labels("jacobian", "stacked-rnn").inc()
    lines = re.findall(r"^(pushforward_\w+)(?:\{(.*)\})? ", page + metrics.page().decode(), re.MULTILINE)
    return {name: {"instance", *re.findall(r'(\w+)="', labels)} for name, labels in lines}


@pytest.mark.parametrize("expression", expressions())
def test_the_dashboard_asks_for_what_the_server_measures(shown, expression):
    names = re.findall(r"pushforward_\w+", expression)
    assert names
    asked = re.findall(r"(\w+)=~", expression) + re.findall(r"by \(([\w, ]+)\)", expression)
    labels = {label.strip() for part in asked for label in part.split(",")}
    for name in names:
        assert name in shown
        assert labels <= shown[name]


def test_the_dashboard_shows_every_measure(shown):
    text = " ".join(expressions())
    measures = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in shown}
    assert {name for name in measures if name not in text} == set()
