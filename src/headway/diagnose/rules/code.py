"""The training code itself."""

from __future__ import annotations

from headway.diagnose.diagnosis import FailureRule

KNOWN = (
    FailureRule(
        name="loss-not-finite",
        pattern=r"loss is not finite|a loss before step \d+ was not finite|Loss is nan, stopping training"
        r"|Function '\w+' returned nan values|loss (?:is|=|:) ?nan\b",
        cause="the loss is not a number: the training has come apart",
        fix="--set config.lr=… ten times lower, or clip gradients; config.nan=skip leaves such batches out",
    ),
    FailureRule(
        name="missing-module",
        pattern=r"(?:ModuleNotFoundError|ImportError): No module named '?(?P<module>[\w.]+)'?",
        cause="Python's module {module} is not installed where it trains, or not among the files that were sent",
        fix="add it to requirements.txt (requirements: in the job file), or see headway plan for what is sent",
    ),
    FailureRule(
        name="numpy-abi",
        pattern=r"numpy\.dtype size changed|A module that was compiled using NumPy 1\.x cannot be run in NumPy 2"
        r"|_ARRAY_API not found",
        cause="a package was built for another major version of NumPy",
        fix="pin numpy<2 in requirements.txt, or a newer version of the package",
    ),
    FailureRule(
        name="import-failed",
        pattern=r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'",
        cause="{module} has no {name}: another version of it than the code was written for",
        fix="pin the version that you have here (pip show) in requirements.txt",
    ),
    FailureRule(
        name="dependency-conflict",
        pattern=r"ResolutionImpossible|Cannot install .* because these package versions have conflicting dependencies"
        r"|No matching distribution found for (?P<package>\S+)",
        cause="the requirements cannot be installed together, or not on that Python",
        fix="pip install -r requirements.txt in an empty environment of the same Python, and pin what works",
    ),
    FailureRule(
        name="bad-argument",
        pattern=r"error: unrecognized arguments: (?P<arguments>.+)"
        r"|error: the following arguments are required: (?P<required>.+)"
        r"|error: argument (?P<argument>\S+): (?:invalid|expected)",
        cause="the script does not take the arguments that the job file gives it",
        fix="mend `args` in the job file; headway plan --rehearse checks them",
    ),
    FailureRule(
        name="shapes",
        pattern=r"mat1 and mat2 shapes cannot be multiplied|size mismatch for (?P<parameter>\S+?):"
        r"|The size of tensor a \(\d+\) must match the size of tensor b|Sizes of tensors must match"
        r"|Expected input batch_size \(\d+\) to match target batch_size",
        cause="two tensors do not fit together: a layer, a batch or a checkpoint of another size",
        fix="headway plan --rehearse finds such things here, with two examples a batch",
    ),
    FailureRule(
        name="keys-of-another-model",
        pattern=r"Error\(s\) in loading state_dict|Missing key\(s\) in state_dict|Unexpected key\(s\) in state_dict",
        cause="the weights are of another model than the code builds",
        fix="the settings must be those of the run that wrote them; init_from wants the same architecture",
    ),
    FailureRule(
        name="dtypes",
        pattern=r"expected (?:scalar type|m1 and m2 to have the same dtype)|must have the same dtype"
        r"|Input type \(.*\) and weight type \(.*\) should be the same",
        cause="a tensor has another type, or is on another device, than the one it meets",
        fix="let run.place(model) and run.steps(feed) move things; call .to(run.device) on what you make yourself",
    ),
    FailureRule(
        name="several-devices",
        pattern=r"Expected all tensors to be on the same device",
        cause="tensors on different devices meet",
        fix="call .to(run.device) on what you make yourself",
    ),
    FailureRule(
        name="unsafe-checkpoint",
        pattern=r"Weights only load failed|WeightsUnpickler error",
        cause="the file holds more than weights: loading it could run code",
        fix="save the state_dict alone, as safetensors; or convert it where you trust it",
    ),
    FailureRule(
        name="fork-in-workers",
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        cause="a data loader's process was forked after the accelerator was in use",
        fix="create loaders before the model, or multiprocessing_context='spawn'",
    ),
    FailureRule(
        name="worker-died",
        pattern=r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:exited unexpectedly|is killed by signal)",
        cause="a data loader's process died: most often for lack of memory, or in a picture library",
        fix="--set config.workers=0 shows the real error",
    ),
    FailureRule(
        name="recursion",
        pattern=r"RecursionError|maximum recursion depth exceeded",
        cause="the code calls itself without an end",
        fix="headway logs {run} shows the lines above it",
    ),
    FailureRule(
        name="syntax",
        pattern=r"(?:SyntaxError|IndentationError|TabError): (?P<what>.+)",
        cause="the script is not valid for the Python that trains: {what}",
        fix="python -m py_compile on it with the same version; headway plan shows which files are sent",
    ),
    FailureRule(
        name="crashed-in-native-code",
        pattern=r"Segmentation fault|SIGSEGV|core dumped|SIGABRT|double free or corruption"
        r"|terminate called after throwing",
        cause="a library crashed in its own code, not in Python",
        fix="--env PYTHONFAULTHANDLER=1 shows where; then other versions of that package",
    ),
)
