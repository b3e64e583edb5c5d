"""From a plan to a run: launch, resume, stop, migrate, collect garbage, rehearse."""
