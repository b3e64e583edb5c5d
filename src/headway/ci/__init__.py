"""What starts training from a commit message, run from the wheel in pipelines. `tools.ci` writes the pipelines."""
