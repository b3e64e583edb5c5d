"""Two folders with a run of one name: what operators' pods do not say themselves, their job says. Needs no cluster."""

from __future__ import annotations

from typing import Any

import pytest

from headway.targets.kubernetes import options, pytorchjob, status, trainjob
from headway.targets.kubernetes.options import Options
from tests.targets.kubernetes.answering import Answering

ORIGINAL, COPY = "gs://bucket/runs/mine", "gs://bucket/copies/mine"
JOBS = {
    "trainjob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/mine",
    "pytorchjob": "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/mine",
}


def pod(*, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    metadata = {"name": "mine-node-0-0-abcde", "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": metadata, "status": {"phase": "Running"}}


def found(engine: str, item: dict[str, Any], url: str, *, of: str | None = ORIGINAL) -> list[str]:
    job = {JOBS[engine]: {"metadata": {"name": "mine", "annotations": {options.URL_ANNOTATION: of}}}} if of else {}
    api = Answering(answers={"/api/v1/namespaces/default/pods": {"items": [item]}, **job})
    return [each.name for each in status.workers(api, Options(engine=engine), "mine", url)]  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["trainjob", "pytorchjob"])
def test_the_pods_of_the_original_are_not_a_copys(engine: str) -> None:
    bare = pod(labels={pytorchjob.POD_LABEL: "mine", trainjob.POD_LABEL: "mine"})
    labelled = pod(labels={options.FOLDER_LABEL: options.folder_hash(ORIGINAL)})
    annotated = pod(annotations={options.URL_ANNOTATION: ORIGINAL})
    for item in (bare, labelled, annotated):
        assert found(engine, item, ORIGINAL)
        assert not found(engine, item, COPY), item
    assert found(engine, bare, ORIGINAL, of=None), "its job is gone, and it would stay for ever"
