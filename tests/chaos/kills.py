"""Kills at chosen and at random moments. Every choice comes from one seeded generator, so a run can be replayed."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.board import Seen, Wish
from tests.chaos.case import Case, children, send

# Where a rank may be when it is hit, and how often that is aimed at. The rest of a kill's moment is chance.
MOMENTS = {
    "import": 2,
    "start": 2,
    "restore": 3,
    "data": 2,
    "forward": 3,
    "step": 6,
    "log": 2,
    "between": 3,
    "take snapshot": 3,
    "took snapshot": 3,
    "write part": 4,
    "wrote part": 4,
    "write part record": 2,
    "wrote part record": 2,
    "write state": 3,
    "write metrics": 3,
    "wrote metrics": 3,
    "write manifest": 4,
    "wrote manifest": 6,
    "write pointer": 3,
    "wrote pointer": 3,
    "write last": 4,
    "wrote last": 3,
    "remove manifest": 3,
    "removed manifest": 3,
    "removed part": 3,
    "evaluate": 6,
    "score": 2,
    "epoch_end": 3,
    "finish": 2,
    "export": 4,
    "write export": 3,
    "wrote weights": 3,
    "done": 1,
}
OF_RANK_0 = ("state", "metrics", "manifest", "pointer", "last", "remove", "export", "weights")
AT_THE_END = ("finish", "export", "write export", "wrote weights", "done")
ONCE = ("import", "start", "restore", *AT_THE_END)  # in an attempt

# Who is hit, with what, and how often.
KINDS = {
    "SIGKILL one rank": 30,
    "SIGKILL the supervisor": 16,
    "SIGKILL everything": 14,
    "SIGTERM one rank": 12,
    "SIGTERM the supervisor": 12,
    "SIGTERM the supervisor, then SIGKILL everything": 6,
    "SIGKILL a loader": 6,
    "SIGKILL the undertaker, then the supervisor": 4,
}
LINGER_S, DELAY_S = 0.03, 0.05  # at most: how long the moment lasts, and how long after its beginning we strike
PATIENCE_S = 1.0  # after training has begun, a moment that does not come is waited for no longer


@dataclass
class Hit:
    """One kill, as it happened."""

    kind: str
    aimed: str
    found: str  # where the rank that was watched really was


@dataclass
class Tally:
    """Counts over many runs."""

    hits: list[Hit] = field(default_factory=list)
    runs: int = 0

    def by(self, what: Callable[[Hit], str]) -> dict[str, int]:
        return dict(Counter(what(hit) for hit in self.hits).most_common())


class Killer:
    """Kills one run again and again, and starts it again, until it has ended well."""

    def __init__(self, case: Case, seed: str, tally: Tally) -> None:
        self._case, self._seed, self._tally = case, seed, tally
        self._dice = random.Random(seed)
        self._hit_attempt = 0  # a newer one than this is waited for
        self._may_end_with: set[int] = {0}
        self.commits: list[tuple[int, int]] = []  # attempt, and the newest commit seen while it was the newest

    def run(self, kills: int) -> int:
        """The run to its end, with at most so many kills; how many there were."""
        case, done, tries = self._case, 0, 0
        wish = self._wish()
        case.start()
        while True:
            watched = self._wait_for(wish) if done < kills else None
            if watched is None:
                if self._ended():
                    return done
                continue
            tries += 1
            self._dice = random.Random(f"{self._seed} {tries}")  # chance in one kill shifts no choice of the next
            time.sleep(self._dice.choice([0.0, self._dice.uniform(0, DELAY_S)]))
            kind, aimed, wish = self._choose(KINDS), wish.moment, self._wish()
            if self._hit(kind, watched):
                found = self._where(watched)
                self._tally.hits.append(Hit(kind, aimed, found))
                done += 1
            self._observe(watched.attempt)

    def _choose(self, weights: dict[str, int]) -> str:
        return self._dice.choices(list(weights), list(weights.values()))[0]

    def _wish(self) -> Wish:
        """What the next attempt's ranks are to be met at; they read it when they start."""
        moment = self._choose(MOMENTS)
        if "part record" in moment and self._case.ranks == 1:
            moment = "wrote part"  # rank 0 has no need of one
        rank = 0 if any(word in moment for word in OF_RANK_0) else self._dice.randrange(self._case.ranks)
        if "part record" in moment:
            rank = self._dice.randrange(1, self._case.ranks)
        skip = 0 if moment in ONCE else self._dice.choice([0, 0, 1, 2, 4, 7])
        wish = Wish(moment, rank, skip, self._dice.choice([0.0, LINGER_S]))
        wish.write(self._case.boards)
        return wish

    def _wait_for(self, wish: Wish) -> Seen | None:
        """A rank of a new attempt at that moment; None when the supervisor ended first."""

        strike_at: float | None = None

        def look() -> Seen | bool:
            nonlocal strike_at
            ranks = self._case.ranks_now(above=self._hit_attempt)
            for seen in ranks:
                if seen.here == wish.moment:
                    return seen
            training = [seen for seen in ranks if seen.main == "step"]
            if training and strike_at is None and wish.moment not in AT_THE_END:
                strike_at = time.monotonic() + PATIENCE_S
            if strike_at is not None and time.monotonic() > strike_at and ranks:
                return self._dice.choice(ranks)
            return not self._case.running

        found = self._case.until(look, f"nobody ever came to {wish.moment!r}", every_s=0.002)
        return found if isinstance(found, Seen) else None

    def _hit(self, kind: str, watched: Seen) -> bool:
        """False when the victim was gone already."""
        case, supervisor = self._case, self._case.supervisor
        assert supervisor is not None
        case.family()
        self._hit_attempt = watched.attempt
        if kind == "SIGKILL one rank":
            return self._signal_rank(watched, signal.SIGKILL)
        if kind == "SIGTERM one rank":
            self._may_end_with |= {143}
            return self._signal_rank(watched, signal.SIGTERM)
        if kind == "SIGKILL a loader":
            loaders = sorted(children(watched.pid))
            return bool(loaders) and send(self._dice.choice(loaders), signal.SIGKILL)
        if kind == "SIGKILL everything":
            case.kill_everything()
        elif kind == "SIGKILL the undertaker, then the supervisor":
            ranks = {seen.pid for seen in case.ranks_now()}
            for pid in children(supervisor.pid) - ranks:
                send(pid, signal.SIGKILL)
            send(supervisor.pid, signal.SIGKILL)
        elif kind == "SIGKILL the supervisor":
            send(supervisor.pid, signal.SIGKILL)
        else:
            self._may_end_with |= {143}
            send(supervisor.pid, signal.SIGTERM)
            if "then SIGKILL" in kind:
                time.sleep(self._dice.uniform(0, 0.3))
                case.kill_everything()
        self._may_end_with |= {-9} if "SIGKILL" in kind else set()
        case.ends()
        return True

    def _signal_rank(self, watched: Seen, number: int) -> bool:
        """The one that was watched, or one of its fellows."""
        ranks = self._case.ranks_now(above=watched.attempt - 1)
        victim = self._dice.choice([watched, *ranks])
        return send(victim.pid, number)

    def _where(self, watched: Seen) -> str:
        """What the watched rank was doing in its last moment; the board outlives it."""
        for seen in self._case.ranks_now(above=watched.attempt - 1):
            if seen.attempt == watched.attempt and seen.rank == watched.rank:
                return seen.saver if seen.saver.startswith(("write ", "remove ")) else seen.main
        return watched.main

    def _observe(self, attempt: int) -> None:
        self.commits.append((attempt, self._case.committed()))

    def _ended(self) -> bool:
        """After the supervisor's end: True if the run is done; otherwise it is started again."""
        case = self._case
        code = case.ends()
        assert code in self._may_end_with, f"the supervisor ended with {code}, not one of {self._may_end_with}"
        if code == 0:
            return True
        case.until(lambda: not case.left_behind(), f"left behind: {case.left_behind()}")
        self._may_end_with = {0}
        case.start()
        return False
