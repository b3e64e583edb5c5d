"""Proof, for one's own job, that killed and resumed is the same as never killed: `headway verify-resume`."""

from headway.verify.proof import Proof, prove

__all__ = ["Proof", "prove"]
