"""`headway notebook`: Jupyter on the machine of a run, in this machine's browser."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from headway.cli.attached import say
from headway.cli.runs import add_run, locate
from headway.errors import FINISHED, BadInput, HeadwayError

if TYPE_CHECKING:
    from headway.launcher import Launched
    from headway.notebook.session import Session

LOOK_S = 2.0  # between looks at whether the run goes on


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="of this machine; default: any that is free")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def main(args: argparse.Namespace) -> int:
    from headway.launcher import reach
    from headway.notebook.places import place
    from headway.notebook.session import Session

    launched = reach(locate(args.run), say=say)
    live = not launched.target.status(launched.handle).state.ended
    found = place(launched)
    say(f"starting Jupyter on {found.where}")
    try:
        session = Session(found, port=args.port)
    except OSError as error:
        raise BadInput(f"port {args.port}: {error.strerror}", fix="another --port, or none") from None
    try:
        with session:
            _tell(session, browser=not args.no_browser)
            say(_outlasted(session, launched) if live else _left_open(session))
    except KeyboardInterrupt:
        say("closed; the run goes on" if live else "closed")
    return FINISHED


def _tell(session: Session, *, browser: bool) -> None:
    print(f"{session.told['name']} in {session.told['folder']}:\n  {session.address}", flush=True)
    print("  in a cell:  import headway; headway.open_run()\nCtrl-C closes it; the run goes on", flush=True)
    if browser and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(session.address)


def _outlasted(session: Session, launched: Launched) -> str:
    """Wait for the run's end, or Jupyter's, whichever is first: why it was closed."""
    over = False
    while not over:
        over = session.over.wait(LOOK_S)  # in a container Jupyter ends with the run, which is then looked at once more
        try:
            status = launched.target.status(launched.handle)
        except HeadwayError:  # out of reach for a moment: looked at again
            continue
        if status.state.ended:
            return f"closed: {launched.run} is {status.state.value}"
    return _ended(session)


def _left_open(session: Session) -> str:
    """Of a run that has ended there is nothing to wait for but Jupyter's own end, or Ctrl-C."""
    while not session.over.wait(LOOK_S):
        pass
    return _ended(session)


def _ended(session: Session) -> str:
    return f"Jupyter on {session.place.where} has ended"
