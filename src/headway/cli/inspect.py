"""The verbs that show runs: `ps status pull why ui notebook`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.dispatch import add_json, add_run, locate
from headway.cli.render import print_status, progress_while
from headway.core.errors import FINISHED, BadInput, BadPlan, HeadwayError, needs
from headway.core.format import ago, as_json, duration, paint, size, table

if TYPE_CHECKING:
    from headway.core.types import Status
    from headway.dashboard.notebook.jupyter import Session
    from headway.diagnose.diagnosis import Diagnosis
    from headway.launcher.lifecycle import RunHandle
    from headway.rundir.index import RunRow
    from headway.rundir.layout import RunFolder


# `headway notebook`: open Jupyter on a run's machine in this machine's browser.


POLL_S = 2.0  # between checks whether the run has ended


def notebook_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="on this machine (default: any free port)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def notebook_command(args: argparse.Namespace) -> int:
    from headway.dashboard.notebook.jupyter import Session, exec_command
    from headway.launcher.lifecycle import open_run

    launched = open_run(locate(args.run), say=print_status)
    live = not launched.current_status().state.ended
    found = exec_command(launched)
    print_status(f"starting Jupyter on {found.where}")
    try:
        session = Session(found, port=args.port)
    except OSError as error:
        raise BadInput(f"port {args.port}: {error.strerror}", fix="choose another --port, or leave it out") from None
    try:
        with session:
            _print_address(session, browser=not args.no_browser)
            print_status(_wait_for_run_end(session, launched) if live else _close_message(session))
    except KeyboardInterrupt:
        print_status("closed; the run keeps running" if live else "closed")
    return FINISHED


def _print_address(session: Session, *, browser: bool) -> None:
    print(f"{session.ready_message['name']} in {session.ready_message['folder']}:\n  {session.address}", flush=True)
    print("  in a cell:  import headway; headway.open_run()\nCtrl-C closes it; the run keeps running", flush=True)
    if browser and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(session.address)


def _wait_for_run_end(session: Session, launched: RunHandle) -> str:
    """Wait until the run or Jupyter ends, whichever is first; return why it was closed."""
    over = False
    while not over:
        over = session.ended.wait(POLL_S)  # in a container Jupyter ends with the run: then check the run once more
        try:
            status = launched.current_status()
        except HeadwayError:  # unreachable at the moment: try again
            continue
        if status.state.ended:
            return f"closed: {launched.run} is {status.state.value}"
    return _ended(session)


def _close_message(session: Session) -> str:
    """Wait until Jupyter itself ends, for a run that has already ended; return why it was closed."""
    while not session.ended.wait(POLL_S):
        pass
    return _ended(session)


def _ended(session: Session) -> str:
    return f"Jupyter on {session.place.where} has ended"


# `headway ps`: list runs, newest first, from the index. For runs that have not ended, their folders are read.


_RED = ("failed", "lost", "damaged")
COLOURS = {"running": "blue", "finished": "green", "stopped": "yellow", **dict.fromkeys(_RED, "red")}


def ps_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="GLOB", help="only runs whose name matches: 'captions-*'")
    parser.add_argument("--on", metavar="TARGET", help="only runs on this target")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="default: 20")
    parser.add_argument(
        "--rebuild", metavar="OUTPUTS", help="add every run found below this folder or URL to the index"
    )
    add_json(parser)


def ps_command(args: argparse.Namespace) -> int:
    from headway.rundir.index import RunIndex

    run_index = RunIndex()
    if args.rebuild:
        with progress_while(f"searching {args.rebuild}"):
            found = run_index.rebuild(args.rebuild)
        print(f"{found} runs found below {args.rebuild}")
    rows = run_index.rows(glob=args.name, target=args.on, limit=args.limit)
    if rows:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(8) as pool:  # one round trip per run whose folder is in a bucket
            rows = list(pool.map(refreshed, rows))
    if args.json:
        print(as_json([asdict(row) for row in rows]))
    elif rows:
        now = time.time()
        places = [_position(row) for row in rows]
        cells = [
            (row.name, row.state, row.target, ago(row.created, now), place, row.url)
            for row, place in zip(rows, places, strict=True)
        ]
        text = table(("NAME", "STATE", "ON", "STARTED", "PROGRESS", "FOLDER"), cells)
        for state, colour in COLOURS.items():
            text = text.replace(f"  {state}", f"  {paint(state, colour)}")
        print(text)
    else:
        print("no runs yet.   next: headway init && headway run")
    return 0


def _position(row: RunRow) -> str:
    """Format the progress of a running run; "" for all others, and for one that has reported none."""
    from headway.rundir.layout import RunFolder
    from headway.storage import open_store

    if row.state != "running":
        return ""
    try:
        return describe_position(RunFolder(open_store(row.url)).progress() or {}, running=True)
    except HeadwayError:  # unreachable at the moment
        return ""


def refreshed(row: RunRow) -> RunRow:
    """Return the row with the current state. The folder of a run that has ended is not read again."""
    from headway.core.types import State

    if State(row.state).ended and State(row.state) is not State.LOST:
        return row
    from headway.launcher.lifecycle import observe  # slow to import

    try:
        return replace(row, state=observe(row.url).status.state.value)
    except BadPlan as error:
        print_status(f"{row.name} is damaged: {str(error).splitlines()[0]}")
        return replace(row, state="damaged")
    except HeadwayError:  # unreachable or deleted: show the last known state
        return replace(row, state="gone")


# `headway pull`: copy a run's folder, or parts of it, to this machine.


PARTS = ("checkpoints", "events", "export", "files", "logs", "metrics", "samples")


def pull_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument("--to", metavar="DIR", help="default: a folder with the run's name in the current folder")
    parser.add_argument("--as", dest="form", choices=("pth", "safetensors"),
                        help="write the weights of any run as files of this format instead")  # fmt: skip
    parser.add_argument("--only", action="append", choices=PARTS, help="copy only this part; can be repeated")


def pull_command(args: argparse.Namespace) -> int:
    from headway.launcher.pull import copy_run, destination

    url = locate(args.run)
    to = destination(url, args.to)
    if args.form:
        _keep_out_of_uploads(to)
        return _as_weights(args, url, str(to))
    doing = f"copying to {to}"
    with progress_while(doing) as tell:
        done = copy_run(
            url, to, only=args.only or (), begin=_keep_out_of_uploads, report=lambda got, of: tell(doing, got, of)
        )
    summary = {"to": str(done.to), "files": done.files, "bytes": done.bytes}
    print(as_json(summary) if args.json else f"{done.files} files, {size(done.bytes)} in {done.to}")
    return 0


def _keep_out_of_uploads(to: Path) -> None:
    """Exclude a folder that `pull` fills from the code that the next run of a job around it would upload."""
    marker = to / ".headwayignore"
    if marker.exists() or to.is_file():
        return
    if to.is_dir() and any(to.iterdir()):  # the user's own folder: its files may be part of the code
        if Path.cwd() in (to, *to.parents):
            print_status(f"runs of a job in {Path.cwd()} upload {to} too, unless .headwayignore there names it")
        return
    to.mkdir(parents=True, exist_ok=True)
    marker.write_text("# written by `headway pull`: copies of a run are not code to upload\n*\n")


def _as_weights(args: argparse.Namespace, url: str, to: str) -> int:
    from headway.cli.model import write_weight_files

    if args.only:
        raise BadInput(f"--only cannot be combined with --as {args.form}", fix="leave out --only")
    return write_weight_files(url, args.form, to, checkpoint=None, json=args.json)


def status_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)


def status_command(args: argparse.Namespace) -> int:
    from headway.launcher.lifecycle import open_run

    launched = open_run(locate(args.run), say=print_status)
    found = facts(launched, launched.status())
    print(as_json(found) if args.json else describe_status(found))
    return 0


def facts(launched: RunHandle, status: Status) -> dict[str, Any]:
    from headway.cli.follow import next_for, recorded_kind
    from headway.cli.render import links
    from headway.rundir.history import last_metrics
    from headway.rundir.overview import RunOverview, describe_speed, describe_system

    folder = launched.folder
    overview = RunOverview.of(folder, status=status)
    return {
        "run": launched.run,
        "url": launched.url,
        "target": launched.target_handle.target,
        "state": status.state.value,
        "reason": overview.status.reason,
        "condition": overview.condition,
        "resumable": status.state.resumable,
        "resume": recorded_kind(folder),
        "code_changes": _code_changes(folder),
        "attempts": overview.attempts,
        "fault": overview.fault,
        "began_again": overview.began_again,
        "checkpoint": overview.checkpoint,
        "kept": _kept(folder),
        "progress": overview.progress or None,
        "speed": describe_speed(overview.progress, _usd_per_hour(folder)),
        "machine": describe_system(overview.progress),
        "metrics": last_metrics(folder),
        "spent": overview.spent.as_json(),
        "links": links(launched),
        "next": next_for(launched, status.state),
    }


def _usd_per_hour(folder: RunFolder) -> float | None:
    from headway.rundir.lease import usd_per_hour

    return usd_per_hour(folder.plan())


def _describe_fault(fault: Mapping[str, Any] | None) -> str:
    """Describe the last failure: attempt 1: out of memory (retry smaller): retried"""
    if not fault:
        return ""
    return f"attempt {fault['attempt']}: {fault['cause']} ({fault['class']}): {fault['decision']}"


def _kept(folder: RunFolder) -> dict[str, Any] | None:
    """What of the program's own files is in the run folder, and what is not; None if nothing is recorded."""
    try:
        record = folder.read_json("workdir/node-0.json")
    except HeadwayError:
        return None
    files = (record or {}).get("files", {})
    left_out = (record or {}).get("not_kept", [])
    if not files and not left_out:
        return None
    return {"files": len(files), "bytes": sum(each["size"] for each in files.values()), "not_kept": left_out}


def _describe_left_out(left_out: list[dict[str, Any]]) -> str:
    """The first few files and folders that are not kept, with their sizes and the reason."""
    shown = [
        f"{each['path']} ({_count(each['files'])}, {size(each['bytes'])}) {each['why']}"
        for each in left_out[:MAX_SHOWN]
    ]
    more = len(left_out) - MAX_SHOWN
    return "; ".join([*shown, *([f"{more} more"] if more > 0 else [])])


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files:,} files"


MAX_SHOWN = 3


def _code_changes(folder: RunFolder) -> list[dict[str, Any]]:
    from headway.rundir.submission import code_changes, read

    try:
        return [{"attempt": attempt, "files": names} for attempt, names in code_changes(read(folder))]
    except HeadwayError:
        return []


def _describe_code_changes(changes: list[dict[str, Any]]) -> str:
    from headway.packaging.code_changes import name_files

    return "; ".join(f"changed before attempt {each['attempt']}: {name_files(each['files'])}" for each in changes)


def _spent(found: dict[str, Any]) -> str:
    from headway.rundir.spending import Spending

    used = found.get("spent") or {}
    return Spending(**used).text if found.get("attempts") and used.get("seconds") is not None else ""


def describe_position(progress: Mapping[str, Any], *, running: bool) -> str:
    """Describe where a run is: 1280/8000, epoch 3/20, 2 min left"""
    parts = []
    if progress.get("steps"):
        parts.append(f"{progress.get('step', 0)}/{progress['steps']}")
    elif progress.get("step") is not None:
        parts.append(str(progress["step"]))
    if progress.get("epochs"):
        parts.append(f"epoch {min(progress.get('epoch', 0) + 1, progress['epochs'])}/{progress['epochs']}")
    elif progress.get("epoch") is not None:
        parts.append(f"epoch {progress['epoch'] + 1}")
    if progress.get("doing") and running:
        parts.append(str(progress["doing"]))
    if progress.get("eta_s") and running:
        parts.append(f"{duration(progress['eta_s'])} left")
    return ", ".join(parts)


def describe_metrics(metrics: Mapping[str, float]) -> str:
    """Describe the newest values of at most six metrics, the loss first: loss 0.412, val_accuracy 0.871"""
    first = sorted(metrics, key=lambda name: ("loss" not in name, name))
    more = f", and {len(first) - 6} more" if len(first) > 6 else ""
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in first[:6]) + more


def _describe_resume(found: dict[str, Any]) -> str:
    from headway.core.plan import describe_resume

    if found.get("began_again"):
        return f"its files are restored, but attempt {found['began_again']} was at the program's first epoch again"
    return describe_resume(found["resume"]) if found["resume"] else ""


def describe_status(found: dict[str, Any]) -> str:
    progress, kept = found["progress"] or {}, found.get("kept")
    rows = {
        "state": found["state"] + (f": {found['reason']}" if found["reason"] else ""),
        "on": found["target"],
        "folder": found["url"],
        "attempts": str(found["attempts"]),
        "failure": _describe_fault(found.get("fault")),
        "step": describe_position(progress, running=found["state"] == "running"),
        "speed": found.get("speed", "") if found["state"] == "running" else "",
        "machine": found.get("machine", "") if found["state"] == "running" else "",
        "metrics": describe_metrics(found.get("metrics") or {}),
        "saved": "" if found["checkpoint"] is None else f"step {found['checkpoint']}",
        "files": f"{_count(kept['files'])}, {size(kept['bytes'])} kept" if kept else "",
        "not kept": _describe_left_out(kept["not_kept"]) if kept else "",
        **found["links"],
        "spent": _spent(found),
        "code": _describe_code_changes(found.get("code_changes") or []),
        "resume": _describe_resume(found),
        "next": found["next"],
    }
    lines = [f"  {key:<9} {text}" for key, text in rows.items() if text]
    return "\n".join([paint(found["run"], "bold"), *lines])


# `headway ui`: show all runs in a browser.


_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def ui_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("outputs", nargs="*", metavar="OUTPUTS", help="also show the runs in these folders or buckets")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine alone")
    parser.add_argument("--port", type=int, default=8765, help="default: 8765; 0: any free port")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def ui_command(args: argparse.Namespace) -> int:
    with needs("serve", "ui"):
        import uvicorn

        from headway.dashboard.app import DashboardApp
        from headway.dashboard.runs import FolderScanner, RunService
        from headway.serving.server import Address, host_names, listen
    from headway.rundir.index import RunIndex

    run_index = RunIndex()
    places = FolderScanner(run_index, args.outputs)
    places.start()
    taken = listen(Address(host=args.host, port=args.port))
    with taken:
        taken.listen()  # a browser that connects before the server is ready waits instead of being refused
        token = _token()  # on this machine too: other users of a login node reach its loopback address
        hosts = host_names(args.host, (), routed=False) or frozenset()
        site = DashboardApp(RunService(run_index, places), stop=_stop, resume=_resume, hosts=hosts, token=token)
        address = _address(args.host, taken.getsockname()[1], token)
        print(f"all runs: {address}\nCtrl-C stops the dashboard; the runs keep running")
        sys.stdout.flush()
        if not args.no_browser and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(address)
        config = uvicorn.Config(
            site.application(), log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[taken])
    return FINISHED


def _token() -> str:
    from secrets import token_urlsafe

    return token_urlsafe(24)


def _address(host: str, port: int, token: str) -> str:
    shown = "localhost" if host in _LOOPBACK or host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/?token={token}"


def _stop(url: str) -> str:
    from headway.launcher.lifecycle import open_run

    return open_run(url, say=lambda _: None).stop().status.state.value


def _resume(url: str) -> str:
    from headway.launcher.lifecycle import resume

    return resume(url, say=lambda _: None, from_beginning=False).status().state.value


# `headway why RUN`: print the cause of a failure, the log line that shows it, and the fix.


def why_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, also="; or the log file of any program, - for standard input")
    parser.add_argument("--rank", type=int, metavar="N", help="explain this rank (default: the one that failed first)")
    add_json(parser)


def why_command(args: argparse.Namespace) -> int:
    if args.run == "-" or (Path(args.run).is_file() and not Path(args.run).is_dir()):
        return _explain_log(args)
    from headway.diagnose.diagnosis import diagnose_run
    from headway.launcher.lifecycle import open_run

    hold = open_run(locate(args.run), say=print_status)
    found = diagnose_run(hold, hold.current_status(), rank=args.rank)
    cause = "\n".join([describe_cause(found), *not_sent_notes(hold.folder)])
    print(as_json(asdict(found)) if args.json else cause)
    following = after_failure(hold.folder, found)
    if following and not args.json:
        print(f"next: {following}")
    return 0


def _explain_log(args: argparse.Namespace) -> int:
    """Explain a log file that need not be of a run: by the table, and by `explain` of a job file beside us."""
    from headway.diagnose.diagnosis import diagnose_log
    from headway.diagnose.matching import user_rules

    try:
        data = sys.stdin.buffer.read() if args.run == "-" else Path(args.run).read_bytes()
    except OSError as error:
        raise BadInput(f"{args.run} cannot be read: {error.strerror}", fix="headway why FILE") from None
    name = "standard input" if args.run == "-" else args.run
    lines = data.decode("utf-8", "replace").replace("\r", "\n").splitlines()
    found = diagnose_log(lines, name, user_rules(_job_beside()))
    if args.json:
        print(as_json(asdict(found)))
    elif not found.name and not found.lines:
        print(f"{name} is empty")
    else:
        print(describe_cause(found))
    return 0


def _job_beside() -> dict[str, Any]:
    """Return the job of the current folder, for its `explain`; empty if there is none or it is not valid."""
    from headway.spec import dump, load

    try:
        return dict(dump(load(Path("headway.yaml")))) if Path("headway.yaml").is_file() else {}
    except HeadwayError:  # a broken job file must not keep a log from being explained
        print_status("headway.yaml beside it is not valid, so its `explain` is not used: headway plan")
        return {}


def after_failure(folder: RunFolder, found: Diagnosis, *, rerun: str = "headway run") -> str:
    """Return the next command after a failure; "" if nothing failed or the fix names it."""
    from headway.core.program import is_project, program_words
    from headway.core.types import State
    from headway.rundir.status import next_command

    if found.state not in ("failed", "lost") or (found.name and not (found.in_code and found.at)):
        return ""
    try:
        crashed, plan = "rank" in (folder.ended() or {}), folder.plan()
    except HeadwayError:
        return f"headway status {found.run}"
    if crashed and is_project(plan.job) and not _was_killed(folder):  # a resume would run the same code
        at = source_location(found.at, plan.project) if found.at else program_words(plan.job)[0]
        return f"edit {at}, then {rerun}" if found.at else f"fix {at}, then {rerun}"
    return next_command(folder, plan, State.LOST)


def _was_killed(folder: RunFolder) -> bool:
    """Whether the rank that failed first was killed from outside: its code need not be at fault."""
    exits = [event for event in folder.events() if event.get("kind") == "rank_exit" and event.get("first")]
    return bool(exits) and exits[-1].get("signal") == "SIGKILL"


def source_location(at: str, project: str) -> str:
    """A line of the project as the user reaches it from the current folder: train.py:6, or ../grades/train.py:6."""
    if not project or Path.cwd() == Path(project):
        return at
    path = Path(project) / at
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def not_sent_notes(folder: RunFolder) -> list[str]:
    """Return the files that were not sent with a program that has failed before its first step: it may miss them."""
    try:
        if (folder.ended() or {}).get("state") != "failed" or (folder.progress() or {}).get("step"):
            return []
        return [f"  note     {note}" for note in folder.plan().notes if note.startswith("not sent: ")]
    except HeadwayError:  # the folder is unreachable: the failure itself has been printed
        return []


def describe_cause(found: Diagnosis) -> str:
    """Format cause, evidence and fix; for an unknown failure, the last lines of one rank's log."""
    if not found.name and found.state not in ("failed", "lost"):
        return f"{found.run} is {found.state}: nothing has failed"
    if found.name:
        rows = {"cause": found.cause, "seen in": found.evidence, "at": found.at, "fix": found.fix}
        rows |= {"class": found.retry, "decided": found.decided}
        return "\n".join(f"  {paint(f'{key:<8}', 'bold')} {text}" for key, text in rows.items() if text)
    if found.lines:
        who = "" if found.rank is None else f" of rank {found.rank}, which failed first"
        decided = [f"  {paint('decided ', 'bold')} {found.decided}"] if found.decided else []
        return "\n".join([f"  unknown failure; last lines{who}:", *(f"    {line}" for line in found.lines), *decided])
    return f"  unknown failure; no rank printed anything. The supervisor's log: headway logs {found.run} --rank -1"
