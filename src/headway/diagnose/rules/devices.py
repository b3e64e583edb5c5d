"""Rules for errors of accelerators, drivers and processors."""

from __future__ import annotations

from headway.diagnose.matching import FailureRule, Retry

RULES = (
    FailureRule(
        name="driver-too-old",
        pattern=r"NVIDIA driver on your system is too old"
        r"|CUDA driver version is insufficient for CUDA runtime version"
        r"|forward compatibility was attempted on non supported HW|cuda>=\d+\.\d+, please update your driver"
        r"|system has unsupported display driver",
        cause="the NVIDIA driver is older than the CUDA that torch was built for",
        fix="install a newer driver on the machine, or an older torch: pip install torch --index-url …/whl/cu118",
    ),
    FailureRule(
        name="no-kernel-image",
        pattern=r"no kernel image is available for execution on the device"
        r"|is not compatible with the current PyTorch installation",
        cause="torch was built without this accelerator's architecture",
        fix="use another torch (its release notes list architectures), or another accelerator: --set"
        " resources.accelerator=L4:1",
    ),
    FailureRule(
        name="no-gpu",
        pattern=r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device is detected"
        r"|could not select device driver .* with capabilities: \[\[gpu\]\]"
        r"|nvidia-container-cli: initialization error"
        r"|Torch not compiled with CUDA enabled",
        cause="no accelerator is visible to the process: no driver, no device assigned, or a torch without CUDA",
        fix="nvidia-smi on the machine; in containers the NVIDIA toolkit; on GKE nodes the driver's daemonset"
        " (headway doctor)",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="gpu-fell-off",
        pattern=r"GPU is lost|fallen off the bus|\bXid\b.*\b(?:48|63|64|74|79|94|95)\b|uncorrectable ECC error"
        r"|unspecified launch failure",
        cause="the accelerator hardware failed",
        fix="headway resume {run}   (on another machine: {again})",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="illegal-memory-access",
        pattern=r"illegal memory access was encountered|CUDA error: misaligned address",
        cause="illegal memory access on the accelerator: a bug in an extension, or an index out of range",
        fix="headway run --env CUDA_LAUNCH_BLOCKING=1   (shows the line)",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="device-side-assert",
        pattern=r"device-side assert triggered|Assertion `t >= 0 && t < n_classes` failed"
        r"|Assertion `srcIndex < srcSelectDimSize` failed|index out of range in self",
        cause="a label or token index is outside the range that the model was built for",
        fix="compare the number of classes or tokens with the data; headway run --env CUDA_LAUNCH_BLOCKING=1"
        " shows the line",
    ),
    FailureRule(
        name="cudnn-mismatch",
        pattern=r"CUDNN_STATUS_(?:NOT_INITIALIZED|EXECUTION_FAILED|VERSION_MISMATCH|SUBLIBRARY_VERSION_MISMATCH)"
        r"|cuDNN version incompatibility",
        cause="cuDNN failed: another version is found first, or memory was full at its start",
        fix="unset LD_LIBRARY_PATH; if that does not help, --set accumulate=2",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="missing-library",
        pattern=r"(?P<library>lib[\w.+-]+\.so[\d.]*): cannot open shared object file",
        cause="the system library {library} is not installed on the training machine",
        fix="install it in the image with apt-get (setup: in the job file, or image.base)",
    ),
    FailureRule(
        name="wrong-architecture",
        pattern=r"exec format error|does not match the (?:detected|specified).*platform"
        r"|no matching manifest for linux/\w+"
        r"|cannot execute binary file|wrong ELF class|image platform .* does not match",
        cause="the image or program is for another processor architecture",
        fix="headway image --build   (with platform: linux/amd64 in the target; Apple silicon is arm64)",
    ),
    FailureRule(
        name="illegal-instruction",
        pattern=r"SIGILL|Illegal instruction|requires (?:AVX|AVX2|AVX512)",
        cause="the program uses instructions that this processor does not have",
        fix="use another machine (--set resources.machine=n2-standard-8), or a package built for older processors",
    ),
    FailureRule(
        name="glibc-too-old",
        pattern=r"version `GLIBC(?:XX)?_[\d.]+' not found",
        cause="the system's C library is older than the one that the package was built for",
        fix="use a newer image.base (Debian 12, Ubuntu 22.04), or an older version of the package",
    ),
)
