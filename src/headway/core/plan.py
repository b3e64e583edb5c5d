"""The plan: a job resolved for one target, as plain values. The same inputs give the same bytes.

Also the ways in which a run resumes; a plan records one of them as `resume`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from headway.core.errors import BadPlan, json_of
from headway.core.types import Request

SCHEMA = 1
RUN = "{RUN}"  # placeholder for the run's name until launch
# Variables in a plan's `env`, read by the ranks. All variables are in docs/environment.md.
STEP_LIMIT, DIE_AFTER_STEP = "HEADWAY_STEP_LIMIT", "HEADWAY_DIE_AFTER_STEP"
USD_PER_HOUR, BUDGET_USD, EXPORT_S = "HEADWAY_USD_PER_HOUR", "HEADWAY_BUDGET_USD", "HEADWAY_EXPORT_S"
WEBHOOK = "HEADWAY_WEBHOOK"  # name of the secret by which the address for notifications reaches the run
UPLOADED = "upload:"  # prefix of the fingerprint of files that the launcher uploads beside the runs
UNRESOLVED = "unresolved"  # the fingerprint of remote data that has not been looked up yet


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """The code to send: an archive named by its content, and Headway's own wheel.

    Attributes:
        sha256: Digest of the archive.
        files: Number of files in it.
        bytes: Their total size.
        biggest: Name and size of the biggest files.
        wheel: File name of Headway's wheel.
        wheel_sha256: Digest of the wheel.
        runtime: File name of the archive with the supervisor's own interpreter, for an image that Headway did not
            build; empty if there is none. The name carries its digest.
    """

    sha256: str
    files: int
    bytes: int
    biggest: tuple[tuple[str, int], ...]
    wheel: str
    wheel_sha256: str
    runtime: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of a run. Durations, never times of day, because clocks may jump. None means no limit.

    Attributes:
        budget_s: Seconds, over all attempts.
        max_wait_s: Seconds in a queue.
        grace_s: Seconds for the last checkpoint after a request to stop.
        second: The target's own limit, which takes effect if the budget does not; in words.
    """

    budget_s: float | None
    max_wait_s: float | None
    grace_s: float
    second: str  # the target's own limit, which takes effect if the budget does not; in words


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A job resolved for one target, as plain values. The same inputs give the same bytes.

    Attributes:
        schema: Version of the plan's format.
        headway: Version of Headway that made it.
        job: The job file as understood, defaults filled in; secrets are references.
        target: Name of the target.
        kind: Kind of the target: `local`, `docker`, …
        options: The target's options.
        code: The code to send.
        data: Fingerprint of each data source, or `unresolved`.
        nodes: Number of nodes.
        processes: Ranks on each node.
        limits: Budget, waiting time and grace period.
        environment: Versions and thread counts that exactness depends on.
        price: usd_per_hour, spot_usd_per_hour, expected_usd, ceiling_usd, …: those that are known.
        resume: How the run resumes: `exact`, `transformers`, `lightning`, `keras`, `script` or `beginning`; empty in
            plans of older versions.
        project: The project's folder, if the target runs it there, in place.
        plugins: What the plan uses of other packages: for each kind (`target`, `recipe`, `trackers`, `stores`) the
            names with their package; of a target also what the supervisor must know of it. Empty if nothing.
        notes: What a reader of the plan should know before launching it.
        requests: The exact requests that the target will make.

    Example:
        >>> import headway
        >>> from headway.planning import Plan
        >>> plan = headway.plan(headway.Job.load("headway.yaml"))
        >>> [request.name for request in plan.requests]
        ['supervisor.json']
        >>> Plan.from_json(plan.to_json()).hash == plan.hash
        True
    """

    schema: int = SCHEMA
    headway: str
    job: Mapping[str, Any]  # the job file as understood, defaults filled in; secrets are references
    target: str
    kind: str
    options: Mapping[str, Any]
    code: Code
    data: Mapping[str, str]  # source -> fingerprint, or UNRESOLVED
    nodes: int
    processes: int  # ranks on each node
    limits: Limits
    environment: Mapping[str, str]  # versions and thread counts that exactness depends on
    price: Mapping[str, Any]  # usd_per_hour, spot_usd_per_hour, expected_usd, ceiling_usd, …: those that are known
    resume: str = ""  # one of the kinds below; empty in older plans, whose wheels refuse the key
    project: str = ""  # the project's folder on this machine, if it runs there, in place; left out of the JSON if not
    plugins: Mapping[str, Any] = field(default_factory=dict)  # what it uses of other packages; left out if nothing
    notes: tuple[str, ...] = ()  # what a reader of the plan should know before launching it
    requests: tuple[Request, ...] = field(default=())

    def to_json(self) -> str:
        """Serialize the plan: sorted keys, so that equal plans are equal texts.

        Returns:
            JSON that `from_json` reads.
        """
        plain = asdict(self)
        if not self.resume:  # an older plan keeps its bytes, and with them its hash
            del plain["resume"]
        if not self.project:
            del plain["project"]
        if not self.plugins:
            del plain["plugins"]
        if not self.code.runtime:
            del plain["code"]["runtime"]
        return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @property
    def resumes(self) -> str:
        """How the run resumes, also for older plans: a recipe is EXACT; UNKNOWN if only the script's code tells."""
        return self.resume or (EXACT if self.job.get("recipe") else UNKNOWN)

    @property
    def hash(self) -> str:
        """SHA-256 of what would be done. The price is left out: estimates change as more runs are recorded."""
        return hashlib.sha256(replace(self, price={}).to_json().encode()).hexdigest()

    @property
    def name_hash(self) -> str:
        """Short hash for a run's name: of what would be done, without the price and the notes for readers."""
        return replace(self, notes=()).hash[:6]

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "plan") -> Plan:
        """Parse what `to_json` wrote.

        Args:
            text: The JSON.
            where: Name of its source, for error messages.

        Returns:
            The plan.

        Raises:
            BadPlan: If it is anything else, or of another schema.

        Example:
            >>> from headway.planning import Plan
            >>> Plan.from_json("{}", where="plan.json")
            Traceback (most recent call last):
            headway.core.errors.BadPlan: plan.json: not a plan: KeyError: 'schema'
                fix: headway plan --out plan.json
        """
        try:
            raw = json_of(text)
            if raw["schema"] != SCHEMA:
                raise BadPlan(
                    f"this plan has schema {raw['schema']}, this Headway reads {SCHEMA}",
                    where=where,
                    fix="headway plan --out plan.json",
                )
            code = raw.pop("code")
            code["biggest"] = tuple((str(name), int(size)) for name, size in code["biggest"])
            requests = tuple(Request(**request) for request in raw.pop("requests"))
            limits, notes = Limits(**raw.pop("limits")), tuple(raw.pop("notes"))
            plan = cls(code=Code(**code), limits=limits, notes=notes, requests=requests, **raw)
            _check_types(plan)
            return plan
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadPlan(
                f"not a plan: {type(error).__name__}: {error}",
                where=where,
                fix="headway plan --out plan.json",
            ) from None


def _check_types(plan: Plan) -> None:
    """Raise TypeError for a value that cannot be what a plan holds: whoever reads a plan relies on these."""
    limits, job = plan.limits, plan.job
    numbers = (limits.budget_s, limits.max_wait_s, limits.grace_s, plan.nodes, plan.processes)
    texts = (plan.headway, plan.target, plan.kind, plan.code.sha256, plan.code.wheel, plan.code.wheel_sha256)
    tables = (job, plan.options, plan.data, plan.environment, plan.price)
    if not all(each is None or (isinstance(each, int | float) and not isinstance(each, bool)) for each in numbers):
        raise TypeError("a limit, or the number of nodes or processes, is not a number")
    if not all(isinstance(each, str) for each in texts) or not all(isinstance(each, Mapping) for each in tables):
        raise TypeError("a field does not have its type")
    for name in _TABLES_OF_A_JOB:
        if not isinstance(job.get(name, {}), Mapping):
            raise TypeError(f"job.{name} is not an object")
    if not isinstance(job.get("name"), str) or not isinstance(job.get("outputs", ""), str):
        raise TypeError("the job's name or outputs are not text")


_TABLES_OF_A_JOB = ("resources", "config", "env", "secrets", "data", "checkpoint")


def uploaded_data_url(plan: Plan, source: str, outputs: str) -> str:
    """Return where the launcher uploads a path of the client's machine to; "" if it does not.

    Args:
        plan: The plan.
        source: The path, as in the job's `data`.
        outputs: The folder or URL of the runs, as the caller reaches it.

    Returns:
        A URL.

    Example:
        >>> import headway
        >>> from headway.core.plan import uploaded_data_url
        >>> uploaded_data_url(headway.plan(headway.Job.load("headway.yaml")), "/data/splits.json", "gs://bucket/runs")
        ''
    """
    fingerprint = plan.data.get(source, "")
    if not fingerprint.startswith(UPLOADED):
        return ""
    return f"{outputs.rstrip('/')}/data/{fingerprint.removeprefix(UPLOADED)}/{source.rstrip('/').rpartition('/')[2]}"


# How a run resumes


EXACT: Final = "exact"  # a recipe, or a script that uses headway.start(): bit for bit, from the newest checkpoint
BY_SCRIPT: Final = "script"  # the sources load earlier state: files are restored, the rest is up to the script
# The program uses this framework, whose integration (`headway.integrations`) saves, resumes and reports.
TRANSFORMERS: Final = "transformers"
LIGHTNING: Final = "lightning"
KERAS: Final = "keras"
BY_FRAMEWORK: Final = (TRANSFORMERS, LIGHTNING, KERAS)
BEGINNING: Final = "beginning"  # nothing in the sources loads earlier state
UNKNOWN: Final = ""  # the plan was made by an older version, which did not look

_RESUME_LINES: Final = {
    EXACT: "exact: continues from the last checkpoint",
    BY_SCRIPT: "by the project: its files are restored; whether it continues from them is up to the program",
    TRANSFORMERS: "by Hugging Face Trainer: from its last checkpoint",
    LIGHTNING: "by Lightning: from its last checkpoint",
    KERAS: "by Keras: from the backup after its last epoch",
    BEGINNING: "starts from the beginning: the program does not load anything it has saved",
    UNKNOWN: "unknown: the plan was made by an older version of Headway",
}
_NEXT_START_CLAUSES: Final = {
    EXACT: "it continues from its last checkpoint",
    BY_SCRIPT: "its files are restored; whether it continues from them is up to the program",
    TRANSFORMERS: "Hugging Face Trainer continues from its last checkpoint",
    LIGHTNING: "Lightning continues from its last checkpoint",
    KERAS: "Keras continues from the backup after its last epoch",
    BEGINNING: "it starts from the beginning",
    UNKNOWN: "it is unknown whether it continues from its last checkpoint",
}


def describe_resume(kind: str) -> str:
    """Return the line that describes this kind of resume in a plan and in `headway status`.

    Args:
        kind: A plan's `resume`.

    Returns:
        One line of text.

    Example:
        >>> from headway.core.plan import describe_resume
        >>> describe_resume("exact")
        'exact: continues from the last checkpoint'
    """
    return _RESUME_LINES.get(kind, _RESUME_LINES[UNKNOWN])


def describe_next_start(kind: str) -> str:
    """Return a clause that says what the next start does.

    Args:
        kind: A plan's `resume`.

    Returns:
        A clause to put into a sentence.

    Example:
        >>> from headway.core.plan import describe_next_start
        >>> describe_next_start("beginning")
        'it starts from the beginning'
    """
    return _NEXT_START_CLAUSES.get(kind, _NEXT_START_CLAUSES[UNKNOWN])
