"""Where the packages of the data extra are not installed, its tests are not collected: they test nothing else."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = ("numpy", "pyarrow", "PIL", "simplejpeg", "pyvips", "distributed", "tokenizers", "hypothesis")

collect_ignore = (
    []
    if all(find_spec(name) for name in NEEDED)
    else [
        "test_augment.py",
        "test_checking.py",
        "test_data_inspect.py",
        "test_fetch.py",
        "test_loader.py",
        "test_mix.py",
        "test_permutation.py",
        "test_pictures.py",
        "test_prepare.py",
        "test_shard_cache.py",
        "test_shards.py",
        "test_sources.py",
        "test_text.py",
        "test_unpack.py",
    ]
)
