"""deploy/kubernetes: rendered, valid, and at one with the server."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes import (
    KUBERNETES,
    all_components,
    components_of_the_base,
    container_of,
    one,
    render,
    rendered,
)
from tests.tools import module
from tokend.v1 import tokenizer_service_pb2
from tokend_server.config import Settings, load
from tokend_server.metrics import Metrics, methods_of

VERSION = "1.37"
# What a server takes at most beyond its grace time: the last answers, and workers that do not end.
BEHIND_GRACE_S = 12
# Not Kubernetes' own; the test of the monitor looks at it.
FOREIGN = {"ServiceMonitor"}

Objects = list[dict[str, Any]]


@pytest.fixture(scope="session")
def base_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Objects]:
    """Render the base with components, once each."""
    folder, done = tmp_path_factory.mktemp("kubernetes"), {}

    def give(*components: str) -> Objects:
        if components not in done:
            done[components] = render(folder, *components)
        return done[components]

    return give


def assert_valid(objects: Objects) -> None:
    validator = module("kubernetes_validate")
    for each in objects:
        if each["kind"] not in FOREIGN:
            validator.validate(each, VERSION, strict=True)


def settings_of(objects: Objects) -> Settings:
    environ = {each["name"]: each["value"] for each in container_of(objects).get("env", ())}
    return load([], environ).settings


@pytest.mark.parametrize("component", [None, *components_of_the_base()])
def test_what_is_rendered_is_valid(base_with: Callable[..., Objects], component: str | None):
    objects = base_with(*([component] if component else []))
    assert_valid(objects)
    settings_of(objects)


@pytest.mark.parametrize("example", sorted(each.name for each in (KUBERNETES / "examples").iterdir()))
def test_examples_are_valid(example: str):
    objects = rendered(KUBERNETES / "examples" / example)
    assert_valid(objects)
    settings_of(objects)
    assert container_of(objects)["image"] == "registry.example/tokend:0.1.0"


def test_what_the_page_shows_is_valid():
    page = (KUBERNETES.parents[1] / "docs" / "deploying.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)]
    assert {each["kind"] for each in blocks} == {"Kustomization", "Job"}
    for each in blocks:
        if each["kind"] == "Job":
            assert_valid([each])
        else:
            assert {Path(name).name for name in each["components"]} <= {*components_of_the_base()}


def test_the_validation_finds_a_misspelt_field(base_with: Callable[..., Objects]):
    validator = module("kubernetes_validate")
    deployment = yaml.safe_load(yaml.safe_dump(one(base_with(), "Deployment")))
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(validator.ValidationError):
        validator.validate(deployment, VERSION, strict=True)


def test_services_budget_and_policy_mean_the_pods(base_with: Callable[..., Objects]):
    objects = base_with("network-policy")
    labels = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    for selector in (
        one(objects, "Service")["spec"]["selector"],
        one(objects, "Service", "tokend-headless")["spec"]["selector"],
        one(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector
        assert selector.items() <= labels
    named = {port["name"]: port["containerPort"] for port in container_of(objects)["ports"]}
    assert named == {"grpc": 50051, "ops": 9464}
    policy = one(objects, "NetworkPolicy")["spec"]
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == named.keys()


def test_pods_may_do_nothing_but_their_work(base_with: Callable[..., Objects]):
    pod = one(base_with(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    security = container_of(base_with())["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False


def test_a_pod_has_the_time_that_its_server_takes_to_stop(base_with: Callable[..., Objects]):
    pod = one(base_with(), "Deployment")["spec"]["template"]["spec"]
    pre_stop_s = container_of(base_with())["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace_s = settings_of(base_with()).drain_grace_s
    assert pod["terminationGracePeriodSeconds"] >= pre_stop_s + grace_s + BEHIND_GRACE_S


def test_pods_scale_by_a_metric_that_they_have(base_with: Callable[..., Objects]):
    spec = one(base_with("autoscaling"), "HorizontalPodAutoscaler")["spec"]
    assert "replicas" not in one(base_with("autoscaling"), "Deployment")["spec"]
    [name] = [each["pods"]["metric"]["name"] for each in spec["metrics"] if each["type"] == "Pods"]
    service = tokenizer_service_pb2.DESCRIPTOR.services_by_name["TokenizerService"]
    families = Metrics(methods_of(service), version="0").registry.collect()
    assert (name, "gauge") in {(family.name, family.type) for family in families}
    rule = (KUBERNETES / "components" / "autoscaling" / "adapter-rule.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(rule)[0]["name"]["matches"] == name


def test_the_monitor_finds_the_service_and_its_port(base_with: Callable[..., Objects]):
    objects = base_with("service-monitor")
    monitor = one(objects, "ServiceMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"].keys() == {"selector", "endpoints"}
    service = one(objects, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint.keys() == {"port", "path", "interval"}
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize("component", [name for name in all_components() if name.startswith("tokenizer-")])
def test_the_tokenizer_is_where_the_server_looks(base_with: Callable[..., Objects], component: str):
    objects = base_with(component)
    tokenizer = settings_of(objects).tokenizer
    assert tokenizer is not None
    mounts = {each["mountPath"]: each["name"] for each in container_of(objects)["volumeMounts"]}
    volumes = {each["name"] for each in one(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]}
    assert mounts[str(tokenizer.parent)] in volumes


def test_an_image_with_the_tokenizer_is_named_like_any_other(tmp_path: Path):
    mine = {"name": "tokenizer", "newName": "registry.example/mine", "digest": "sha256:" + "0" * 64}
    objects = render(tmp_path, "tokenizer-image", images=[mine])
    volumes = one(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    [reference] = [each["image"]["reference"] for each in volumes if "image" in each]
    assert reference == f"{mine['newName']}@{mine['digest']}"


def test_with_tls_probes_go_where_there_is_none(base_with: Callable[..., Objects]):
    objects = base_with("mtls", "tokens")
    settings, container = settings_of(objects), container_of(objects)
    mounts = {Path(each["mountPath"]) for each in container["volumeMounts"]}
    for file in (settings.tls_cert_file, settings.tls_client_ca_file, settings.auth_tokens_file):
        assert file is not None
        assert file.parent in mounts
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == "ops"
        assert "grpc" not in container[probe]


def test_a_sidecar_and_its_application_have_the_socket_in_common():
    objects = rendered(KUBERNETES / "examples" / "sidecar")
    pod = one(objects, "Deployment", "chat")["spec"]["template"]["spec"]
    [application] = pod["containers"]
    socket = Path(str(settings_of(objects).listen).removeprefix("unix:"))
    assert {each["value"] for each in application["env"]} == {f"unix:{socket}"}
    for container in (application, container_of(objects)):
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert mounts[str(socket.parent)] == "tokend-socket"
    assert container_of(objects)["restartPolicy"] == "Always"


def test_each_component_says_what_it_is_for():
    for name in all_components():
        text = (KUBERNETES / "components" / name / "kustomization.yaml").read_text(encoding="utf-8")
        assert re.match(r"# \w", text), name
