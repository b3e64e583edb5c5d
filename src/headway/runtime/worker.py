"""Start the supervisor by the name that recorded plans, images and wheels use."""

from __future__ import annotations

from headway.supervisor import main, run_and_exit

__all__ = ["main"]

if __name__ == "__main__":
    run_and_exit()
