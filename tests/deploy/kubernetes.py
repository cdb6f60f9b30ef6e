"""deploy/kubernetes as kubectl renders it."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.tools import tool

__all__ = [
    "KUBERNETES",
    "all_components",
    "components_of_the_base",
    "container_of",
    "one",
    "render",
    "rendered",
]

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"

Objects = list[dict[str, Any]]


def all_components() -> list[str]:
    """The names of the folders in components/."""
    return sorted(each.name for each in (KUBERNETES / "components").iterdir())


def components_of_the_base() -> list[str]:
    """Those that change the base; the sidecar goes to an application's own Deployment."""
    return [name for name in all_components() if name != "sidecar"]


def render(folder: Path, *components: str, images: Sequence[dict[str, str]] = ()) -> Objects:
    """Render the base with components as a user's own kustomization beside them would, in a copy of the tree."""
    tool("kubectl")  # Skips here, before there is a copy.
    tree = folder / "kubernetes"
    if not tree.exists():
        shutil.copytree(KUBERNETES, tree)
        # The file that its users put there.
        (tree / "components" / "tokenizer-configmap" / "tokenizer.json").write_text("{}", encoding="utf-8")
    mine = tree / "-".join(("mine", *components))
    mine.mkdir()
    wanted = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../base"],
        "components": [f"../components/{name}" for name in components],
        "images": list(images),
    }
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(wanted), encoding="utf-8")
    return rendered(mine)


def rendered(folder: Path) -> Objects:
    """Render one kustomization."""
    done = subprocess.run(
        [tool("kubectl"), "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one(objects: Objects, kind: str, name: str = "tokend") -> dict[str, Any]:
    """The one object of that kind and name."""
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def container_of(objects: Objects) -> dict[str, Any]:
    """The server's container, or the one beside an application's."""
    [pod] = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    every = [*pod["containers"], *pod.get("initContainers", ())]
    [container] = [each for each in every if each["name"] == "tokend"]
    return container
