"""The verbs `stop`, `down` and `gc`: end runs, remove what they made, find what was left behind."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.dispatch import DEFAULT, add_json, add_run, locate
from headway.cli.render import progress_while
from headway.core.errors import FINISHED, LEFT_BEHIND, HeadwayError
from headway.core.format import as_json, paint, table

if TYPE_CHECKING:
    from headway.core.types import Receipt, Target
    from headway.launcher.gc import FoundResource, TargetRef
    from headway.spec import Job


# `headway stop` ends a run so that it can be resumed; `headway down` also removes all it created but its folder.


def stop_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)


def stop_command(args: argparse.Namespace) -> int:
    return _stop(args) if args.verb == "stop" else _down(args)


def _stop(args: argparse.Namespace) -> int:
    from headway.cli.follow import next_for, recorded_kind, resume_note, resume_text
    from headway.cli.render import print_status
    from headway.launcher.lifecycle import open_run

    hold = open_run(locate(args.run), say=print_status)
    kind = recorded_kind(hold.folder)
    with progress_while(f"stopping {hold.run}{resume_note(kind)}"):
        outcome = hold.stop()
    left = outcome.receipt.left if outcome.receipt else ()
    state = outcome.status.state
    if args.json:
        print(as_json({"run": outcome.run, "state": state.value, "left": list(left), "resume": kind}))
    else:
        following = next_for(hold, state)
        lines = resume_text(kind, state) if following.startswith("headway resume") else []
        print("\n".join([f"{outcome.run} {state.value}", *lines, *([f"next: {following}"] if following else [])]))
    return LEFT_BEHIND if left else FINISHED


def _down(args: argparse.Namespace) -> int:
    from headway.cli.render import print_status
    from headway.launcher.lifecycle import open_run
    from headway.rundir.teardown import complete_receipt

    hold = open_run(locate(args.run), say=print_status)
    earlier = complete_receipt(hold.folder)  # of an end that was seen before: its removals are not this command's
    with progress_while(f"removing {hold.run}"):
        receipt = hold.down()
    if args.json:
        print(as_json(asdict(receipt)))
    else:
        removed = [name for name in receipt.removed if earlier is None or name not in earlier.removed]
        print(f"{receipt.run}: removed {', '.join(removed) or 'nothing (already gone)'}")
        print(_verified_text(receipt))
        for line in billable_resources(hold.target):
            print(f"still billed: {line}")
    return LEFT_BEHIND if receipt.left else FINISHED


def _verified_text(receipt: Receipt) -> str:
    if receipt.left:
        return f"LEFT BEHIND: {', '.join(receipt.left)}"
    if receipt.unverified:
        return f"could not verify the removal of: {', '.join(receipt.unverified)}"
    return "verified: nothing is left running"


def billable_resources(target: Target) -> list[str]:
    """Return what the target reports as still billed without a run, such as a node pool that does not shrink."""
    from headway.core.errors import HeadwayError

    try:
        return target.billable_resources()
    except HeadwayError as error:  # the run itself has been taken down
        return [f"unknown: {error.problem.what}"]


COLOURS = {"orphan": "red", "live": "green", "unknown": "yellow", "not yours": "dim"}


def gc_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", metavar="FILE", help=f"the job file (default: {DEFAULT}, if it exists)")
    parser.add_argument("--on", metavar="TARGET", help="search only this target (default: all known targets)")
    parser.add_argument("--dry-run", action="store_true", help="list only; remove nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    add_json(parser)


def gc_command(args: argparse.Namespace) -> int:
    """Run `headway gc`. Exit code: 0 if nothing of ours is left, 5 if something is or may be. Ignores other owners."""
    from headway.launcher.gc import ORPHAN, OTHER_OWNER, UNKNOWN, target_refs

    where = target_refs(_job(args.file), on=args.on)
    found, missed = _list_resources(where, explicit=args.on is not None)
    unseen = _unseen(found) if args.on is None else []
    missed |= _broken_targets() if args.on is None else {}
    orphans = [each for each in found if each.verdict == ORPHAN]
    unknown = [each.handle.run for each in found if each.verdict == UNKNOWN]
    if not args.json:
        _list(found, missed)
    removed, left = (
        _remove(orphans) if orphans and _confirm(args, len(orphans)) else ([], [str(o.handle.run) for o in orphans])
    )
    left += unseen
    if args.json:
        print(
            as_json(
                {
                    "found": [_json_record(each) for each in found],
                    "removed": removed,
                    "left": left,
                    "unknown": unknown,
                    "not_asked": missed,
                }
            )
        )
    else:
        _print_result(removed, left, unknown, missed, on=args.on)
        if any(each.verdict == OTHER_OWNER for each in found):
            print("resources of other owners were not touched")
    return LEFT_BEHIND if left or unknown else FINISHED


def _broken_targets() -> dict[str, str]:
    """Return the targets of other packages that cannot be loaded: what they have rented is not known."""
    from headway.plugins import TARGETS

    return {plugin.name: plugin.problem for plugin in TARGETS.plugins(load=True) if plugin.problem}


def _job(file: str | None) -> Job | None:
    if file is None and not Path(DEFAULT).exists():
        return None
    from headway.spec import Job

    return Job.load(Path(file or DEFAULT))


def _list_resources(where: list[TargetRef], *, explicit: bool) -> tuple[list[FoundResource], dict[str, str]]:
    """Return the resources found, and the targets that could not be searched, each with the reason."""
    from headway.cli.render import print_status
    from headway.launcher.gc import deduplicate, find_resources

    found: list[FoundResource] = []
    missed: dict[str, str] = {}
    for place in where:
        try:
            found += find_resources(place, say=print_status)
        except HeadwayError as error:
            if explicit:
                raise
            missed[place.name] = error.problem.what  # for example no Docker here: search the other targets
    return deduplicate(found), missed


def _unseen(found: list[FoundResource]) -> list[str]:
    from headway.cli.render import print_status
    from headway.launcher.gc import unlisted_rentals

    unseen = unlisted_rentals(found)
    for each in unseen:
        print_status(f"a rented machine is on record, but its target is not in the job file: {each}\n"
            "    fix: headway gc -f FILE, with the job file that names its target")  # fmt: skip
    return unseen


def _list(found: list[FoundResource], missed: dict[str, str]) -> None:
    if found:
        rows = [(each.handle.run, each.names, each.verdict, each.reason, each.handle.url) for each in found]
        text = table(("RUN", "ON", "", "WHY", "FOLDER"), rows)
        for verdict, colour in COLOURS.items():
            text = text.replace(f"  {verdict}  ", f"  {paint(verdict, colour)}  ")
        print(text)
    for name, reason in missed.items():
        print(paint(f"{name} could not be searched: {reason}", "yellow"))


def _confirm(args: argparse.Namespace, count: int) -> bool:
    if args.dry_run:
        return False
    if args.yes:
        return True
    if not sys.stdin.isatty():
        print("nothing was removed; to remove them: headway gc -y", file=sys.stderr)
        return False
    print(f"remove {count} orphan{'s' if count > 1 else ''}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower().startswith("y")


def _remove(orphans: list[FoundResource]) -> tuple[list[str], list[str]]:
    from headway.cli.render import print_status
    from headway.launcher.gc import remove

    removed: list[str] = []
    left: list[str] = []
    for each in orphans:
        try:
            receipt = remove(each, say=print_status)
        except HeadwayError as error:
            print_status(f"{each.handle.run} could not be removed: {error}")
            left.append(each.handle.run)
            continue
        removed += [f"{name} (not verified)" if name in receipt.unverified else name
                    for name in receipt.removed]  # fmt: skip
        left += receipt.left
    return removed, left


def _print_result(
    removed: list[str], left: list[str], unknown: list[str], missed: dict[str, str], *, on: str | None
) -> None:
    if removed:
        print(f"removed {', '.join(removed)}")
    if left:
        print(f"LEFT BEHIND: {', '.join(left)}")
    if unknown:
        print(f"UNKNOWN, not removed: {', '.join(unknown)}")
    if not left and not unknown:
        where = f" on {on}" if on is not None else ""
        searched = " on the targets that were searched" if missed else where
        print(f"nothing is left behind{searched}" + (f"; NOT SEARCHED: {', '.join(missed)}" if missed else ""))


def _json_record(each: FoundResource) -> dict[str, Any]:
    handle = each.handle
    whose = str(handle.details.get("owner_name", ""))
    found = {
        "run": handle.run,
        "url": handle.url,
        "on": each.target_ref.name,
        "verdict": each.verdict,
        "why": each.reason,
    }
    return {**found, "owner": whose}
