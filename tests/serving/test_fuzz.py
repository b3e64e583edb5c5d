"""The server against its own description: whatever is sent is answered as the description says, and nothing breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, given, settings  # noqa: E402

from headway.serving.inputs import Limits  # noqa: E402
from tests.serving.fuzz import REFUSED, left_out, with_pictures  # noqa: E402

Served = Callable[..., Any]
EXAMPLES = 30  # of each operation, good and bad


@pytest.mark.slow
def test_whatever_is_sent_is_answered_as_the_description_says(served: Served) -> None:
    with served(limits=Limits(body=100_000)) as client:
        config = {"checks": {"negative_data_rejection": {"expected-statuses": REFUSED}}}
        described = schemathesis.openapi.from_url(
            f"{client.base_url}/openapi.json", config=schemathesis.Config.from_dict(config)
        )
        operations = [found.ok() for found in described.get_all_operations()]
        assert len(operations) > 12
        for operation in operations:
            for mode in schemathesis.GenerationMode:
                _fuzz(operation, mode)
        assert client.get("/ready").status_code == 200


def _fuzz(operation: Any, mode: Any) -> None:
    examples = EXAMPLES if operation.body else 3

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    def once(case: Any) -> None:
        with_pictures(case)
        case.call_and_validate(timeout=30, excluded_checks=left_out(case))

    try:
        once()
    except Exception as error:
        if type(error).__name__ == "Unsatisfiable":  # nothing that would be wrong can be sent to it
            return
        raise
