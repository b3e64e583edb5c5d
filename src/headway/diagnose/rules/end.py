"""Ends that are no crash: deadlines, stops, budgets."""

from __future__ import annotations

from headway.diagnose.diagnosis import FailureRule

KNOWN = (
    FailureRule(
        name="deadline",
        pattern=r"DeadlineExceeded|was active on the node longer than the specified deadline"
        r"|timeout of \d+ s(?:econds)? (?:was )?exceeded"
        r"|job.* exceeded.*(?:max|time).*(?:timeout|limit)|the limit of \d+ s on this machine was reached",
        cause="the target's own limit on time ended it",
        fix="headway resume {run}   ({again}), with a larger budget.hours",
    ),
    FailureRule(
        name="budget",
        pattern=r"the budget (?:is|ends) (?:nearly )?(?:spent|here)",
        cause="its budget is spent; the best so far was exported",
        fix="headway export {run}; to go on: a larger budget in the job file, and headway run with init_from: {run}",
    ),
    FailureRule(
        name="no-checkpoint",
        pattern=r"none can be read: going on would throw work away|NoCheckpoint|commits were recorded",
        cause="checkpoints were written, and none of them can be read now",
        fix="headway status {run}; look at checkpoints/ in its folder before anything is started anew",
    ),
    FailureRule(
        name="lease",
        pattern=r"taken over by another start of it|overtaken by attempt",
        cause="the run was started a second time, and the later start goes on",
        fix="headway status {run}",
    ),
    FailureRule(
        name="supervisor-gone",
        pattern=r"gone without a last word|nothing was heard from \S+ for",
        cause="the machine or its supervisor went away without a word: switched off, preempted or killed",
        fix="headway resume {run}   ({again})",
    ),
)
