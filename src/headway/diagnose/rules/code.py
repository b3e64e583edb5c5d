"""Rules for errors in the training code itself."""

from __future__ import annotations

from headway.diagnose.matching import FailureRule, Retry

RULES = (
    FailureRule(
        name="loss-not-finite",
        pattern=r"loss is not finite|a loss before step \d+ was not finite|Loss is nan, stopping training"
        r"|Function '\w+' returned nan values|loss (?:is|=|:) ?nan\b",
        cause="the loss is NaN or infinite: the training diverged",
        fix="lower the learning rate (--set config.lr=…) or clip gradients; config.nan=skip skips such batches",
    ),
    FailureRule(
        name="missing-extra",
        pattern=r"needs Headway's extra \[(?P<extra>[\w,-]+)\]",
        cause="Headway is installed without its part [{extra}] where this ran",
        fix="add headway[{extra}] to requirements.txt (requirements: in the job file), then headway run",
        fix_here="{python} -m pip install 'headway[{extra}]', then headway run",
    ),
    FailureRule(
        name="missing-module",
        pattern=r"(?:ModuleNotFoundError|ImportError): No module named '?(?P<module>[\w.]+)'?",
        cause="the Python module {module} is not installed on the training machine, or not among the uploaded files",
        fix="add {package} to requirements.txt (requirements: in the job file), then headway run; "
        "if it is a module of yours, headway plan shows which files are uploaded",
        fix_here="{python} -m pip install {package}, then headway run; "
        "if it is a module of yours, run from the folder that contains it",
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
        cause="{module} has no {name}: its version differs from the one that the code was written for",
        fix="pin the version that you have here (pip show) in requirements.txt",
    ),
    FailureRule(
        name="dependency-conflict",
        pattern=r"ResolutionImpossible|Cannot install .* because these package versions have conflicting dependencies"
        r"|No matching distribution found for (?P<package>\S+)",
        cause="the requirements conflict, or are not available for that Python",
        fix="pip install -r requirements.txt in an empty environment of the same Python, and pin what works",
    ),
    FailureRule(
        name="bad-argument",
        pattern=r"error: unrecognized arguments: (?P<arguments>.+)"
        r"|error: the following arguments are required: (?P<required>.+)"
        r"|error: argument (?P<argument>\S+): (?:invalid|expected)",
        cause="the script does not take the arguments that the job file gives it",
        fix="fix `args` in the job file; headway plan --rehearse checks them",
    ),
    FailureRule(
        name="no-terminal",
        pattern=r"stty: .*Inappropriate ioctl|\[Errno 25\] Inappropriate ioctl for device|termios\.error",
        cause="the program asks for its terminal, and has none",
        fix="give it one in the job file: command: [bash, -c, 'script -qefc \"python train.py $*\" /dev/null', main]",
    ),
    FailureRule(
        name="shapes",
        pattern=r"mat1 and mat2 shapes cannot be multiplied|size mismatch for (?P<parameter>\S+?):"
        r"|The size of tensor a \(\d+\) must match the size of tensor b|Sizes of tensors must match"
        r"|Expected input batch_size \(\d+\) to match target batch_size",
        cause="tensor shapes do not match: a layer, a batch or a checkpoint has another size",
        fix="compare the sizes in the message with the layer and the batch at that line",
        in_code=True,
    ),
    FailureRule(
        name="keys-of-another-model",
        pattern=r"Error\(s\) in loading state_dict|Missing key\(s\) in state_dict|Unexpected key\(s\) in state_dict",
        cause="the weights belong to another model than the one that the code builds",
        fix="use the settings of the run that wrote them; init_from needs the same architecture",
        in_code=True,
    ),
    FailureRule(
        name="dtypes",
        pattern=r"expected (?:scalar type|m1 and m2 to have the same dtype)|must have the same dtype"
        r"|Input type \(.*\) and weight type \(.*\) should be the same",
        cause="two tensors have different dtypes or devices",
        fix="use run.place(model) and run.steps(feed); call .to(run.device) on tensors that you create",
        in_code=True,
    ),
    FailureRule(
        name="several-devices",
        pattern=r"Expected all tensors to be on the same device",
        cause="two tensors are on different devices",
        fix="call .to(run.device) on tensors that you create",
        in_code=True,
    ),
    FailureRule(
        name="unsafe-checkpoint",
        pattern=r"Weights only load failed|WeightsUnpickler error",
        cause="the file contains more than weights: loading it could run code",
        fix="save only the state_dict, as safetensors; or convert the file if you trust it",
        in_code=True,
    ),
    FailureRule(
        name="fork-in-workers",
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        cause="a data loader worker was forked after CUDA was initialized",
        fix="create loaders before the model, or set multiprocessing_context='spawn'",
        in_code=True,
    ),
    FailureRule(
        name="worker-died",
        pattern=r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:exited unexpectedly|is killed by signal)",
        cause="a data loader worker died, usually because memory ran out or an image library crashed",
        fix="--set config.workers=0 shows the real error",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="recursion",
        pattern=r"RecursionError|maximum recursion depth exceeded",
        cause="the code recurses without end",
        fix="headway logs {run} shows the lines above it",
        in_code=True,
    ),
    FailureRule(
        name="syntax",
        pattern=r"(?:SyntaxError|IndentationError|TabError): (?P<what>.+)",
        cause="the script is not valid for the training machine's Python: {what}",
        fix="check it with python -m py_compile and the same version; headway plan shows which files are uploaded",
        in_code=True,
    ),
    FailureRule(
        name="crashed-in-native-code",
        pattern=r"Segmentation fault|SIGSEGV|core dumped|SIGABRT|double free or corruption"
        r"|terminate called after throwing",
        cause="a library crashed in native code",
        fix="--env PYTHONFAULTHANDLER=1 shows where; then try another version of that package",
        retry=Retry.ONCE,
    ),
)
