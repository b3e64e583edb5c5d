"""Where a run stands: what its folder says, held against what the cluster shows."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import WORKER_AGAIN
from headway.planning.model import RUN
from headway.runfolder import STOP
from headway.runs import Evidence
from headway.targets.afar import FOR_GOOD, next_start
from headway.targets.base import Handle, State, Status
from headway.targets.here import folder_of
from headway.targets.kubernetes import fuse, kinds, manifests, seen
from headway.targets.kubernetes.api import Api, Object
from headway.targets.kubernetes.names import URL_ANNOTATION
from headway.targets.kubernetes.options import Options
from headway.targets.kubernetes.seen import Pod

HOPELESS = 3  # starts of a container that never got as far as an attempt


@dataclass(frozen=True, slots=True)
class Seen:
    """A run's workload and pods, at one look."""

    workload: Object | None
    pods: list[Pod]
    reaper: list[Pod]  # where there is no worker yet: it calls them

    @property
    def leaving(self) -> bool:
        return self.workload is None or "deletionTimestamp" in self.workload["metadata"]

    @property
    def half_made(self) -> bool:
        """It still belongs to its fuse."""
        owners = (self.workload or {}).get("metadata", {}).get("ownerReferences") or ()
        return any(str(owner["name"]).endswith(fuse.NAME.removeprefix(RUN)) for owner in owners)

    @property
    def verdict(self) -> str:
        """How an operator says that its job ended; empty while it has not."""
        conditions = ((self.workload or {}).get("status") or {}).get("conditions") or ()
        for each in conditions:
            if each.get("type") in ("Succeeded", "Complete", "Failed") and each.get("status") == "True":
                said = ": ".join(filter(None, (each.get("reason"), each.get("message"))))
                return f"{each['type']}: {said}" if said else str(each["type"])
        return ""

    @property
    def live(self) -> bool:
        return (not self.leaving and not self.verdict) or any(pod.live for pod in self.pods)


def look(api: Api, options: Options, handle: Handle) -> Seen:
    there = kinds.read(api, manifests.WORKLOAD[options.engine], options.namespace, handle.run)
    if there is not None and kinds.annotation(there, URL_ANNOTATION) != handle.url:
        there = None  # another folder's run of the same name
    pods = seen.workers(api, options, handle.run, handle.url)
    coming = not pods and there is not None
    return Seen(there, pods, seen.reaper(api, options, handle.run, handle.url) if coming else [])


def status(api: Api, options: Options, handle: Handle, looked: Seen, found: Evidence, *, submitting: bool) -> Status:
    """One truth of two: the folder's word on how it ended counts, unless the cluster will start it again."""
    farewell = found.farewell
    if farewell is not None and (farewell.state in FOR_GOOD or not _goes_on(handle, looked)):
        return farewell
    if looked.live:
        return _alive(api, options, handle, looked, found)
    if submitting:
        return Status(state=State.PENDING, reason="is being submitted")
    return _without_a_farewell(api, options, looked, found)


def _goes_on(handle: Handle, looked: Seen) -> bool:
    """A stopped run whose pods are started again by the cluster has not ended, unless somebody asked for its end."""
    if looked.leaving or looked.verdict:
        return False
    return folder_of(handle).read_json(STOP) is None


def _alive(api: Api, options: Options, handle: Handle, looked: Seen, found: Evidence) -> Status:
    running = [pod for pod in looked.pods if pod.running and not pod.leaving]
    if found.started and found.farewell is None and running:
        return Status(state=State.RUNNING, reason=_people(looked.pods))
    if not found.started:
        hopeless = _hopeless(api, options, looked)
        if hopeless:
            return Status(state=State.FAILED, reason=hopeless, exit_code=1)
    why = _waiting(api, options, handle, looked)
    again = next_start(handle, started=found.started)
    return Status(state=State.PENDING, reason=f"{why}{again}")


def _waiting(api: Api, options: Options, handle: Handle, looked: Seen) -> str:
    """Why nothing trains yet: the pods' own trouble, or what the cluster says of those that it cannot make."""
    pods = looked.pods or looked.reaper
    for pod in pods:
        if pod.trouble:
            return f"pod {pod.name}: {seen.explained(pod.trouble)}{_last_words(api, options, pod)}"
    about = [handle.run, f"{handle.run}-reaper", *(pod.name for pod in pods)]
    warnings = seen.events(api, options.namespace, about) if not any(pod.running for pod in pods) else []
    if warnings:
        return seen.explained(warnings[-1])
    if looked.half_made:
        return "its client has not finished making it: it starts in a moment, or goes by itself in ten minutes"
    return _people(pods) or "no pod has been made yet"


def _hopeless(api: Api, options: Options, looked: Seen) -> str:
    """A container that ends again and again before its supervisor has said a word will not mend itself."""
    for pod in looked.pods or looked.reaper:
        if pod.restarts >= HOPELESS and pod.trouble and pod.ended != f"ended with {WORKER_AGAIN}":
            words = _last_words(api, options, pod)
            return f"pod {pod.name} never got as far as an attempt: {pod.ended} {pod.restarts} times{words}"
    return ""


def _without_a_farewell(api: Api, options: Options, looked: Seen, found: Evidence) -> Status:
    ended = [pod for pod in looked.pods if pod.ended or pod.trouble]
    words = next((f"; pod {pod.name} {pod.ended}{_last_words(api, options, pod)}" for pod in ended), "")
    if looked.verdict:
        if not found.started and looked.verdict.startswith("Failed"):
            return Status(state=State.FAILED, reason=f"{looked.verdict}{words}", exit_code=1)
        return Status(state=State.LOST, reason=f"{looked.verdict}{words}")
    if looked.pods:
        return Status(state=State.LOST, reason=f"its pods have ended without a last word{words}")
    gone = "its pods are gone without a last word" if found.started else "nothing of it is in the cluster"
    return Status(state=State.LOST, reason=gone)


def _last_words(api: Api, options: Options, pod: Pod) -> str:
    """What a container said before it ended: of the one before, where it has been started again."""
    if not pod.ended:
        return ""
    lines = seen.log_tail(api, options.namespace, pod.name, previous=pod.restarts > 0 and pod.live)
    said = next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
    return f"; it last said: {said}" if said else ""


def _people(pods: list[Pod]) -> str:
    shown = ", ".join(map(str, pods[:3]))
    return shown + (f" and {len(pods) - 3} more" if len(pods) > 3 else "")
