"""Resume, stop, budget and metrics for Hugging Face Trainer, Accelerate, Lightning and Keras.

The supervisor puts `rank_path` on a program's PYTHONPATH, and nothing has to be changed in the program. A program that
imports Headway can instead name the callback itself: `headway.integrations.transformers.HeadwayCallback()`.

These modules run in the program's own interpreter, in which Headway may not be installed: they use the standard library
of Python 3.6, import each other relatively, and import a framework only if the program has done so.
"""

import os

SWITCH = "HEADWAY_INTEGRATIONS"  # 0: off


def rank_path() -> str:
    """Return the folder to put first on a program's PYTHONPATH, so that its frameworks are recognised."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_path")
