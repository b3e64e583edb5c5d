"""The verbs that show runs: `ps status pull why ui notebook`."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.dispatch import add_json, add_run, locate
from headway.cli.follow import print_status
from headway.cli.render import progress_while
from headway.core.errors import FINISHED, BadInput, BadPlan, HeadwayError, UnknownRun, needs
from headway.core.format import ago, as_json, duration, paint, size, table, usd
from headway.core.plan import EXACT, in_plan
from headway.core.progress import Report

if TYPE_CHECKING:
    from headway.core.types import Status
    from headway.dashboard.notebook.jupyter import Session
    from headway.diagnose.diagnosis import Diagnosis
    from headway.launcher.lifecycle import RunHandle
    from headway.rundir.index import RunRow
    from headway.rundir.layout import RunFolder


# `headway notebook`: Jupyter on the machine of a run, in this machine's browser.


POLL_S = 2.0  # between looks at whether the run goes on


def notebook_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="on this machine (default: any free port)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def notebook_command(args: argparse.Namespace) -> int:
    from headway.dashboard.notebook.jupyter import Session, exec_target
    from headway.launcher.lifecycle import open_run

    launched = open_run(locate(args.run), say=print_status)
    live = not launched.target.status(launched.handle).state.ended
    found = exec_target(launched)
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
    """Wait for the run's end, or Jupyter's, whichever is first: why it was closed."""
    over = False
    while not over:
        over = session.ended.wait(POLL_S)  # in a container Jupyter ends with the run, which is then looked at once more
        try:
            status = launched.target.status(launched.handle)
        except HeadwayError:  # out of reach for a moment: looked at again
            continue
        if status.state.ended:
            return f"closed: {launched.run} is {status.state.value}"
    return _ended(session)


def _close_message(session: Session) -> str:
    """Of a run that has ended there is nothing to wait for but Jupyter's own end, or Ctrl-C."""
    while not session.ended.wait(POLL_S):
        pass
    return _ended(session)


def _ended(session: Session) -> str:
    return f"Jupyter on {session.place.where} has ended"


# `headway ps`: runs, newest first. The index makes it fast; what has not ended is looked up in its folder.


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

    ledger = RunIndex()
    if args.rebuild:
        with progress_while(f"searching {args.rebuild}"):
            found = ledger.rebuild(args.rebuild)
        print(f"{found} runs found below {args.rebuild}")
    rows = ledger.rows(glob=args.name, target=args.on, limit=args.limit)
    with ThreadPoolExecutor(8) as pool:  # each look is a round trip where the folder is in a bucket
        rows = list(pool.map(refreshed, rows))
    if args.json:
        print(as_json([asdict(row) for row in rows]))
    elif rows:
        now = time.time()
        cells = [(row.name, row.state, row.target, ago(row.created, now), row.url) for row in rows]
        text = table(("NAME", "STATE", "ON", "STARTED", "FOLDER"), cells)
        for state, colour in COLOURS.items():
            text = text.replace(f"  {state}", f"  {paint(state, colour)}")
        print(text)
    else:
        print("no runs yet.   next: headway init && headway run")
    return 0


def refreshed(row: RunRow) -> RunRow:
    """The row as it is now. An ended run is not looked up again; one that is seen to have ended is settled."""
    from headway.cli.follow import print_status
    from headway.core.types import State
    from headway.launcher.lifecycle import observe

    if State(row.state).ended and State(row.state) is not State.LOST:
        return row
    try:
        return replace(row, state=observe(row.url).status.state.value)
    except BadPlan as error:
        print_status(f"{row.name} is damaged: {str(error).splitlines()[0]}")
        return replace(row, state="damaged")
    except HeadwayError:  # out of reach, or deleted: that it was there is still worth showing
        return replace(row, state="gone")


# `headway pull`: a run's folder, or parts of it, copied to this machine.


PARTS = ("checkpoints", "events", "export", "files", "logs", "metrics", "samples")


def pull_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument("--to", metavar="DIR", help="default: a folder with the run's name in the current folder")
    parser.add_argument("--as", dest="form", choices=("pth",),
                        help="write named checkpoints and the best weights as .pth files instead")  # fmt: skip
    parser.add_argument("--only", action="append", choices=PARTS, help="copy only this part; can be repeated")


def pull_command(args: argparse.Namespace) -> int:
    from headway.storage import local_path, open_store, require_url
    from headway.storage.transfer import fetch_file

    url = locate(args.run)
    require_url(args.to or "")
    to = Path(args.to or url.rstrip("/").rsplit("/", 1)[-1]).resolve()
    if local_path(url) == to:
        raise BadInput(f"{to} is the run's own folder; there is nothing to copy", fix="headway pull RUN --to DIR")
    if args.form:
        return _as_pth(args, url, str(to))
    store = open_store(url)
    wanted = [e for e in store.list() if not e.key.startswith(("docker/", "local/")) and _is_selected(e.key, args.only)]
    if not wanted:
        raise UnknownRun(f"there are no files to copy in {url}", fix="headway status RUN")
    total, doing = sum(entry.size for entry in wanted), f"copying to {to}"
    with progress_while(doing) as tell:
        done = 0
        for entry in wanted:
            target, before = to / entry.key, done
            if not target.exists() or target.stat().st_size != entry.size:
                fetch_file(store, entry.key, target, progress=partial(_pull_summary, tell, doing, before, total))
            done += entry.size
    said = {"to": str(to), "files": len(wanted), "bytes": total}
    print(as_json(said) if args.json else f"{len(wanted)} files, {size(total)} in {to}")
    return 0


def _pull_summary(tell: Report, doing: str, before: int, total: int, got: int, of: int) -> None:
    tell(doing, before + got, total)


def _as_pth(args: argparse.Namespace, url: str, to: str) -> int:
    from headway.cli.model import print_written
    from headway.core.errors import needs

    if args.only:
        raise BadInput("--only cannot be combined with --as pth", fix="leave out --only")
    with needs("train", "pull --as pth"):
        from headway.artifacts.export import write_pth
    with progress_while(f"writing {to}"):
        files = write_pth(url, to)
    return print_written({"to": to, "files": files}, args.json)


def _is_selected(key: str, only: list[str] | None) -> bool:
    return not only or key.partition("/")[0] in only


def status_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)


def status_command(args: argparse.Namespace) -> int:
    from headway.cli.follow import print_status
    from headway.launcher.lifecycle import open_run

    launched = open_run(locate(args.run), say=print_status)
    found = facts(launched, launched.status())
    print(as_json(found) if args.json else describe_status(found))
    return 0


def facts(launched: RunHandle, status: Status) -> dict[str, Any]:
    from headway.cli.follow import next_for, recorded_kind
    from headway.cli.render import links

    folder = launched.folder
    events = folder.events()
    saved = [event for event in events if event["kind"] == "checkpoint"]
    return {
        "run": launched.run,
        "url": launched.url,
        "target": launched.handle.target,
        "state": status.state.value,
        "reason": status.reason,
        "resumable": status.state.resumable,
        "resume": recorded_kind(folder),
        "attempts": len([event for event in events if event["kind"] == "attempt"]),
        "checkpoint": saved[-1]["step"] if saved else None,
        "progress": folder.progress(),
        "spent": spent_record(folder),
        "links": links(launched),
        "next": next_for(launched, status.state),
    }


def spent_record(folder: RunFolder) -> dict[str, Any]:
    """Of the budget, over all attempts."""
    from headway.rundir.lease import spent_s, spent_usd

    plan, seconds = folder.plan(), spent_s(folder)
    return {"seconds": round(seconds, 1), "usd": spent_usd(plan, seconds), "budget_usd": plan.price.get("ceiling_usd"),
            "budget_s": plan.limits.budget_s}  # fmt: skip


def _spent(found: dict[str, Any]) -> str:
    used = found.get("spent") or {}
    if not found.get("attempts") or used.get("seconds") is None:
        return ""
    limit = f" of {duration(used['budget_s'])}" if used.get("budget_s") else ""
    ceiling = f" of {usd(used['budget_usd'])}" if used.get("budget_usd") else ""
    money = f", {usd(used['usd'])}{ceiling}" if used.get("usd") is not None else ""
    return f"{duration(used['seconds'])}{limit}{money}"


def describe_status(found: dict[str, Any]) -> str:
    progress = found["progress"] or {}
    steps = f"{progress.get('step', 0)}/{progress['steps']}" if progress.get("steps") else ""
    left = f", {duration(progress['eta_s'])} left" if progress.get("eta_s") and found["state"] == "running" else ""
    rows = {
        "state": found["state"] + (f": {found['reason']}" if found["reason"] else ""),
        "on": found["target"],
        "folder": found["url"],
        "attempts": str(found["attempts"]),
        "step": f"{steps}{left}",
        "saved": "" if found["checkpoint"] is None else f"step {found['checkpoint']}",
        **found["links"],
        "spent": _spent(found),
        "resume": in_plan(found["resume"]) if found["resume"] != EXACT else "",
        "next": found["next"],
    }
    lines = [f"  {key:<9} {text}" for key, text in rows.items() if text]
    return "\n".join([paint(found["run"], "bold"), *lines])


# `headway ui`: all runs in a browser.


_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def ui_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("outputs", nargs="*", metavar="OUTPUTS", help="also show the runs in these folders or buckets")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1; any other address requires a token")
    parser.add_argument("--port", type=int, default=8765, help="default: 8765; 0: any free port")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def ui_command(args: argparse.Namespace) -> int:
    with needs("serve", "ui"):
        import uvicorn

        from headway.dashboard.app import DashboardApp
        from headway.dashboard.runs import FolderScanner, RunService
        from headway.serving.server import Address, listen
    from headway.rundir.index import RunIndex

    ledger = RunIndex()
    places = FolderScanner(ledger, args.outputs)
    places.start()
    taken = listen(Address(host=args.host, port=args.port))
    with taken:
        taken.listen()  # a browser that is quicker than we are waits, and is not refused
        token = None if args.host in _LOOPBACK else _token()
        hosts = frozenset({*_LOOPBACK, "[::1]", args.host, f"[{args.host}]", *_names(args.host)})
        site = DashboardApp(RunService(ledger, places), stop=_stop, resume=_resume, hosts=hosts, token=token)
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


def _names(host: str) -> tuple[str, ...]:
    """What a server that listens on all addresses may be called."""
    if host not in ("0.0.0.0", "::"):
        return ()
    import socket

    name = socket.gethostname()
    try:
        found: Any = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError:
        found = set()
    return (name, socket.getfqdn(), *found)


def _address(host: str, port: int, token: str | None) -> str:
    shown = "localhost" if host in _LOOPBACK or host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def _stop(url: str) -> str:
    from headway.launcher.lifecycle import open_run

    return open_run(url, say=lambda _: None).stop().status.state.value


def _resume(url: str) -> str:
    from headway.launcher.lifecycle import resume

    return resume(url, say=lambda _: None).status().state.value


# `headway why RUN`: the cause of a failure, the line that shows it, and what to type.


def why_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--rank", type=int, metavar="N", help="explain this rank (default: the one that failed first)")
    add_json(parser)


def why_command(args: argparse.Namespace) -> int:
    from headway.cli.follow import print_status
    from headway.diagnose.diagnosis import diagnose_run
    from headway.launcher.lifecycle import open_run

    hold = open_run(locate(args.run), say=print_status)
    found = diagnose_run(hold, hold.target.status(hold.handle), rank=args.rank)
    print(as_json(asdict(found)) if args.json else describe_cause(found))
    following = after_failure(hold.folder, found)
    if following and not args.json:
        print(f"next: {following}")
    return 0


def after_failure(folder: RunFolder, found: Diagnosis, *, rerun: str = "headway run") -> str:
    """The next command after a failure; "" where nothing failed or the fix names it."""
    if found.name or found.state not in ("failed", "lost"):
        return ""
    try:
        crashed, script = "rank" in (folder.ended() or {}), folder.plan().job.get("script")
    except HeadwayError:
        return f"headway status {found.run}"
    if crashed and script:  # a resume would run the same code
        return f"fix {script}, then {rerun}"
    return f"headway resume {found.run}"


def describe_cause(found: Diagnosis) -> str:
    """Three lines where the cause is known; else the last lines of the log of one rank."""
    if found.state in ("finished", "running") or (found.state not in ("failed", "lost") and not found.name):
        return f"{found.run} is {found.state}: nothing has failed"
    if found.name:
        rows = {"cause": found.cause, "seen in": found.evidence, "fix": found.fix}
        return "\n".join(f"  {paint(f'{key:<8}', 'bold')} {text}" for key, text in rows.items())
    if found.lines:
        who = "" if found.rank is None else f" of rank {found.rank}, which failed first"
        return "\n".join([f"  unknown failure; last lines{who}:", *(f"    {line}" for line in found.lines)])
    return f"  unknown failure; no rank printed anything. The supervisor's log: headway logs {found.run} --rank -1"
