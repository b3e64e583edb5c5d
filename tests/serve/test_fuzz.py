"""The server against its own description: whatever is sent is answered as the description says, and nothing breaks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, given, settings  # noqa: E402

from headway.serve.limits import Limits  # noqa: E402
from tests.serve.conftest import b64, png  # noqa: E402

Served = Callable[..., Any]
EXAMPLES = 30  # of each operation, good and bad


def test_whatever_is_sent_is_answered_as_the_description_says(served: Served) -> None:
    with served(limits=Limits(body=100_000)) as client:
        refused = [400, 401, 404, 405, 413]  # 413: more than is taken, which is a refusal as good as any
        config = {"checks": {"negative_data_rejection": {"expected-statuses": refused}}}
        described = schemathesis.openapi.from_url(
            f"{client.base_url}/openapi.json", config=schemathesis.Config.from_dict(config)
        )
        operations = [found.ok() for found in described.get_all_operations()]
        assert len(operations) > 12
        for operation in operations:
            for mode in schemathesis.GenerationMode:
                _fuzz(operation, mode)
        assert client.get("/ready").status_code == 200


def _with_pictures(case: Any) -> None:
    """Text where a picture should be becomes one: a description cannot say what a picture is."""
    if not isinstance(case.body, dict) or not isinstance(case.body.get("instances"), list):
        return
    case.body = copy.deepcopy(case.body)  # what was drawn is Hypothesis's own
    for instance in case.body["instances"]:
        if isinstance(instance, dict) and isinstance(instance.get("image"), str) and instance["image"]:
            instance["image"] = b64(png())


def _fuzz(operation: Any, mode: Any) -> None:
    examples = EXAMPLES if operation.body else 3

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    def once(case: Any) -> None:
        _with_pictures(case)
        # No description can say that a shape fits its data, nor that a form's file is a picture; and in a form all is
        # text: there "null" is a word.
        form = "multipart" in (case.media_type or "")
        left_out = [schemathesis.checks.positive_data_acceptance] if form or "infer" in operation.path else []
        left_out += [schemathesis.checks.negative_data_rejection] if form else []
        case.call_and_validate(timeout=30, excluded_checks=left_out)

    try:
        once()
    except Exception as error:
        if type(error).__name__ == "Unsatisfiable":  # nothing that would be wrong can be sent to it
            return
        raise
