"""Rules for runs that ended without a crash: deadlines, stops, budgets."""

from __future__ import annotations

from headway.diagnose.matching import FailureRule, Retry

RULES = (
    FailureRule(
        name="deadline",
        pattern=r"DeadlineExceeded|was active on the node longer than the specified deadline"
        r"|timeout of \d+ s(?:econds)? (?:was )?exceeded"
        r"|job.* exceeded.*(?:max|time).*(?:timeout|limit)|the limit of \d+ s on this machine was reached",
        cause="the target's time limit ended the run",
        fix="headway resume {run}   ({again}), with a larger budget.hours",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="budget",
        pattern=r"the budget (?:is|ends) (?:nearly )?(?:spent|here)",
        cause="the budget is spent; the best checkpoint so far was exported",
        fix="headway resume {run} --budget-hours N   (N: the new total), or use the model: headway eval {run}",
    ),
    FailureRule(
        name="no-checkpoint",
        pattern=r"none can be read: going on would throw work away|NoCheckpoint|commits were recorded",
        cause="checkpoints were written, but none of them can be read",
        fix="headway status {run}; check checkpoints/ in its folder before you start a new run",
    ),
    FailureRule(
        name="lease",
        pattern=r"taken over by (?:another start of it|a newer attempt)|overtaken by attempt",
        cause="the run was started a second time, and the newer attempt replaced this one",
        fix="headway status {run}",
    ),
    FailureRule(
        name="supervisor-gone",
        pattern=r"gone without a last word|no exit status was recorded|without recording (?:a|an exit) status|"
        r"ended without reporting why|(?:nothing was heard|no heartbeat) from \S+ for",
        cause="the machine was switched off or preempted, or the supervisor was killed",
        fix="headway resume {run}   ({again})",
        retry=Retry.RETRY,
    ),
)
