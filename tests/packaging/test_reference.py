"""A name that no registry would take is refused before anything is built, with the one to write instead."""

from __future__ import annotations

import pytest

from headway.packaging.reference import problems

GOOD = (
    "us-docker.pkg.dev/my-project/my-repo/captions",
    "us-east1-docker.pkg.dev/my-project/my-repo/team/captions",
    "northamerica-northeast1-docker.pkg.dev/my-project/r/captions",
    "gcr.io/my-project/captions",
    "ghcr.io/somebody/captions",
    "somebody/captions",
    "localhost:5000/captions",
    "registry.example.com:8443/a/b/c-d_e.f",
    "123456789012.dkr.ecr.us-east-1.amazonaws.com/captions",
)
BAD = {
    "us-docker.pkg.dev": "lacks its PROJECT",
    "us-docker.pkg.dev/my-project": "lacks its REPO",
    "us-docker.pkg.dev/my-project/my-repo": "lacks its NAME",
    "us-docker.pkg.dev/my-project//captions": "lacks its",
    "us-docker.pkg.dev/My_Project/my-repo/captions": "'My_Project'",
    "us-docker.pkg.dev/my-project/My_Repo/captions": "'My_Repo'",
    "us-docker.pkg.dev/my-project/my-repo/Captions": "'Captions'",
    "us-docker.pkg.dev/my-project/my-repo/captions:v1": "tag or digest",
    "us-east-docker.pkg.dev/my-project/my-repo/captions": "'us-east'",
    "ghcr.io/somebody/captions:v1": "tag or digest",
    "captions": "does not name a registry",
    "https://ghcr.io/somebody/captions": "write ghcr.io/somebody/captions",
    "ghcr.io/Somebody/captions": "write ghcr.io/somebody/captions",
    "ghcr.io/some body/captions": "cannot name an image",
    "ghcr.io/" + "a" * 300: "characters",
}


@pytest.mark.parametrize("name", GOOD)
def test_every_registry_is_welcome(name: str) -> None:
    assert problems({"repository": name}, "captions") == []


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_with_what_to_write(name: str) -> None:
    (problem,) = problems({"repository": name}, "captions")
    assert BAD[name] in str(problem)
    assert problem.where == "image.repository"
    assert problem.fix


def test_bases_and_ready_images_may_have_tags_and_digests() -> None:
    digest = "sha256:" + "0" * 64
    for name in (
        "python:3.12-slim",
        f"ghcr.io/a/b@{digest}",
        f"localhost:5000/b:v1@{digest}",
        "nvcr.io/nvidia/pytorch:24.08-py3",
    ):
        assert problems({"base": name}, "captions") == problems({"uri": name}, "captions") == []
    (problem,) = problems({"base": "Python 3"}, "captions")
    assert (problem.where, "python:3.12-slim" in problem.fix) == ("image.base", True)


def test_all_problems_come_at_once() -> None:
    assert len(problems({"base": "A B", "repository": "captions"}, "captions")) == 2
