"""The registries of stores, readers and providers: the class alone says all that is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from headway.plugins.registry import Registry, object_at


@dataclass(frozen=True, slots=True)
class Reference:
    """A store, reader or provider in its registry: a class that is imported on use.

    Attributes:
        path: The class, as "module:Class".
        load: Imports it.

    Example:
        >>> from headway.plugins import READERS
        >>> READERS["table"].path
        'headway.data.readers.csv:Table'
    """

    path: str
    load: Callable[[], Any]


def _references(paths: Mapping[str, str]) -> dict[str, Reference]:
    return {name: Reference(path, partial(object_at, path)) for name, path in paths.items()}


def _reference(name: str, path: str, load: Callable[[], Any]) -> Reference:
    return Reference(path, load)


_S3 = "it speaks S3: write s3://BUCKET/… and set AWS_ENDPOINT_URL to the address of the service"
_MOUNT = "mount it, and write the folder's path"
STORES: Final = Registry(
    "stores",
    "store",
    _references(
        {
            "": "headway.storage:open_folder",
            "az": "headway.storage:open_azure",
            "file": "headway.storage:open_folder",
            "gs": "headway.storage:open_google",
            "memory": "headway.storage:open_memory",
            "s3": "headway.storage:open_amazon",
        }
    ),
    _reference,
    {
        **dict.fromkeys(("b2", "cos", "minio", "obs", "oss", "r2", "spaces", "wasabi"), _S3),
        **dict.fromkeys(("dbfs", "hdfs", "nfs", "sftp", "smb"), _MOUNT),
        "dropbox": "use a folder, gs://, s3:// or az://",
        "hf": "download the files first (huggingface-cli download), and write the folder's path",
    },
)
READERS: Final = Registry(
    "readers",
    "format",
    _references(
        {
            "coco": "headway.data.readers.captions:Coco",
            "flickr8k": "headway.data.readers.captions:Flickr8k",
            "folders": "headway.data.readers.files:ClassFolders",
            "listed": "headway.data.readers.captions:Listed",
            "pairs": "headway.data.readers.csv:GradedPairs",
            "parallel": "headway.data.readers.parallel_text:Parallel",
            "table": "headway.data.readers.csv:Table",
            "vizwiz": "headway.data.readers.captions:VizWiz",
        }
    ),
    _reference,
)
PROVIDERS: Final = Registry("providers", "provider of machines", {}, _reference)
