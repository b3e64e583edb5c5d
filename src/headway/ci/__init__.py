"""Start training from a commit message: pipelines run this from the wheel. `tools.ci` writes the pipelines."""
