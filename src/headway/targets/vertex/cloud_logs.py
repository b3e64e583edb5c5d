"""What Cloud Logging holds of a job: what the machines printed before the supervisor could write, and Vertex AI's own
words. Once the supervisor runs, the run folder has every line, and this is asked no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headway.errors import HeadwayError
from headway.runfolder import SUPERVISOR
from headway.targets.base import LogLine
from headway.targets.vertex.api import Client

LOOK_S = 1.0  # between looks into the folder
ASK_S = 10.0  # Google lets a project read sixty times a minute, all its users together


class Preamble:
    """The lines of one job, each once, in order. What cannot be read is said once, and is no error."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client, self._job_id = client, job_id
        self._since, self._seen = "", set[str]()
        self._complained = False

    def fresh(self) -> Iterator[LogLine]:
        since = f' AND timestamp>="{self._since}"' if self._since else ""
        try:
            for entry in self._client.entries(_of_job(self._job_id) + since):
                key = str(entry.get("insertId", ""))
                if key not in self._seen:
                    self._seen.add(key)
                    self._since = str(entry.get("timestamp", self._since))
                    yield line_of(entry)
        except HeadwayError as error:  # a nicety is missing, not the run: it is said, and training goes on
            if not self._complained:
                self._complained = True
                yield LogLine(rank=SUPERVISOR, time="", text=f"Cloud Logging cannot be read: {error}")


def followed(preamble: Preamble, begun: Callable[[], bool], *, sleep: Callable[[float], None]) -> Iterator[LogLine]:
    """Until the supervisor has begun to write, or nothing more will come."""
    waited = ASK_S
    while True:
        last = begun()
        if last or waited >= ASK_S:
            yield from preamble.fresh()
            waited = 0.0
        if last:
            return
        sleep(LOOK_S)
        waited += LOOK_S


def last_words(client: Client, job_id: str) -> str:
    """The last line that a machine of the job printed, for a reader who wonders why it ended."""
    where = f'{_of_job(job_id)} AND resource.labels.task_name!="service"'
    try:
        for entry in client.entries(where, limit=5, newest=True):
            text = line_of(entry).text.strip()
            if text:
                return text[:300]
    except HeadwayError:  # a nicety is missing, not the answer
        return ""
    return ""


def line_of(entry: Mapping[str, Any]) -> LogLine:
    payload = entry.get("jsonPayload")
    text = payload.get("message", payload) if isinstance(payload, Mapping) else entry.get("textPayload", "")
    task = str(entry.get("resource", {}).get("labels", {}).get("task_name", ""))
    said = f"{task}: {text}" if task else str(text)
    return LogLine(rank=SUPERVISOR, time=str(entry.get("timestamp", "")), text=said.rstrip("\n"))


def _of_job(job_id: str) -> str:
    return f'resource.type="ml_job" AND resource.labels.job_id="{job_id}"'
