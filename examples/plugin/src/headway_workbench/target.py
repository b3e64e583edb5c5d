"""This machine at low priority: the supervisor and its ranks run under `nice`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from headway.core.types import Request
from headway.targets.local import target as local


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(local.Options):
    niceness: Annotated[int, ">= 0", "<= 19"] = 10  # 19: only otherwise idle CPU time


@dataclass(frozen=True)
class NiceTarget(local.LocalTarget):
    options: Options = Options()
    options_class: ClassVar[type[Any]] = Options
    summary: ClassVar[str] = "this machine at low priority; nothing is billed"
    kind: ClassVar[str] = "nice"  # the label by which its processes are found

    def render(self, plan):
        (request,) = super().render(plan)
        argv = ["nice", "-n", str(self.options.niceness), *request.body["argv"]]
        return [Request(name=request.name, body={**request.body, "argv": argv})]

    def notes(self, job, ranks):
        return [*super().notes(job, ranks), f"runs at niceness {self.options.niceness}"]
