"""The core knows no recipe and no target by name: those stand in the registry, and each in its own package."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from headway.plugins import RECIPES, TARGETS
from tests.rules.test_layers import SRC, imports, modules

NAMES = {*RECIPES.built_in, *TARGETS.built_in}
LOCAL = "every job has this machine as a target"
TASK = "the task of a data set, as in its manifest, which a recipe of that name reads"
ENGINE = "the program `docker`, not the target"
DEPLOY = "a place to serve a model, not to train one"
GOOGLE = "Google's list prices are those of one cloud, and its table comes with Headway"
SETS_UP = "writes the Terraform or the image of these targets on request"

EXCEPTIONS = {
    ("artifacts/recipe_model.py", "translation"): TASK,
    ("artifacts/report.py", "local"): LOCAL,
    ("cli/dispatch.py", "local"): LOCAL,
    ("cli/model.py", "classification"): "`headway score` of files, by task",
    ("cli/model.py", "translation"): "`headway score` of files, by task",
    ("cli/serve.py", "docker"): ENGINE,
    ("cli/serve.py", "vertex"): DEPLOY,
    ("cli/setup.py", "docker"): ENGINE,
    ("cli/setup.py", "kubernetes"): SETS_UP,
    ("cli/setup.py", "vertex"): SETS_UP,
    ("cli/verify.py", "local"): LOCAL,
    ("data/dataset/inspect.py", "translation"): TASK,
    ("data/prepare/pipeline.py", "translation"): TASK,
    ("data/prepare/shard_task.py", "translation"): TASK,
    ("data/readers/base.py", "translation"): TASK,
    ("data/readers/parallel_text.py", "translation"): TASK,
    ("launcher/gc.py", "local"): LOCAL,
    ("launcher/rehearse.py", "docker"): "rehearses in the image where this machine lacks torch",
    ("launcher/rehearse.py", "local"): LOCAL,
    ("launcher/start.py", "local"): LOCAL,
    ("metrics/translation.py", "translation"): "names the scores in a file",
    ("packaging/build.py", "docker"): ENGINE,
    ("packaging/engine.py", "docker"): ENGINE,
    ("planning/build.py", "local"): LOCAL,
    ("pricing/quote.py", "vertex"): GOOGLE,
    ("serving/deploy/model.py", "vertex"): DEPLOY,
    ("spec/loading.py", "local"): LOCAL,
    ("targets/ssh/agent.py", "docker"): ENGINE,
    ("targets/ssh/lifecycle.py", "docker"): ENGINE,
    ("targets/ssh/options.py", "docker"): ENGINE,
    ("targets/ssh/script.py", "docker"): ENGINE,
    ("targets/vertex/lifecycle.py", "docker"): ENGINE,
    ("targets/vertex/render.py", "docker"): ENGINE,
    ("testing/providers.py", "ssh"): "the target that rents from providers",
    ("tools/self_test.py", "local"): LOCAL,
    ("tools/terraform_gcp.py", "kubernetes"): SETS_UP,
    ("tools/terraform_gcp.py", "vertex"): SETS_UP,
    ("tools/verify_resume.py", "local"): LOCAL,
}
# Modules of the core that import a concrete target's package.
IMPORTS = {
    ("cli.setup", "docker"): SETS_UP,
    ("launcher.machine_watcher", "local"): "watches a run that the ssh target follows from this machine",
    ("launcher.machine_watcher", "ssh"): "the process that gives rented machines back",
    ("launcher.migrate", "ssh"): "lists the files of a folder that moves with its run",
    ("launcher.rehearse", "docker"): "rehearses in the image where this machine lacks torch",
    ("serving.deploy.vertex", "vertex"): "the machines of Vertex AI, which serve as well",
    ("testing.targets", "local"): "the contract of targets that run on this machine",
}


def named() -> Iterator[tuple[str, str]]:
    """Names of recipes and targets as texts in the code, outside the registry and their own packages."""
    for path in sorted((SRC / "headway").rglob("*.py")):
        file = path.relative_to(SRC / "headway").as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Constant) else None
            own = (f"targets/{value}/", f"recipes/{value}/", "plugins/")
            if isinstance(value, str) and value in NAMES and not file.startswith(own):
                yield file, value


def imported() -> Iterator[tuple[str, str]]:
    for module in modules():
        if module.partition(".")[0] not in ("targets", "recipes", "plugins"):
            for name in imports(module):
                parts = name.split(".")
                if parts[:2] in (["headway", "targets"], ["headway", "recipes"]) and parts[2:] and parts[2] in NAMES:
                    yield module, parts[2]


def test_the_core_names_no_recipe_and_no_target_but_where_a_reason_is_given() -> None:
    assert {*named()} - EXCEPTIONS.keys() == set()
    assert EXCEPTIONS.keys() - {*named()} == set(), "remove these: they are gone"


def test_the_core_imports_no_recipe_and_no_target_but_where_a_reason_is_given() -> None:
    assert {*imported()} - IMPORTS.keys() == set()
    assert IMPORTS.keys() - {*imported()} == set(), "remove these: they are gone"
