"""Find plug-ins: those that ship with Headway, those of installed packages, and classes that a job file names by path.

Cost: a name that ships with Headway is one lookup in a dictionary. Any other name, and every listing, reads the entry
points of all installed packages, once per process (about 0.1 s). A plug-in is imported when it is used, so that a
broken one affects nothing else.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from headway.core.errors import BadInput, HeadwayError
from headway.core.platform import state_dir

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

CLASS_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")  # module:Class
OURS: Final = "headway"  # the distribution of everything that ships with Headway


class BrokenPlugin(BadInput):
    """A plug-in that cannot be loaded: its package is missing, fails on import, or is not what its group requires."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledPlugin:
    """One plug-in as `headway plugins` lists it.

    Attributes:
        group: Kind of plug-in: `targets`, `recipes`, `stores`, `trackers`, `readers` or `providers`.
        name: The name by which job files refer to it; of a store, its URL scheme.
        distribution: Name and version of the package that it comes from.
        loads: The object, as "module:name".
        problem: Why it cannot be used; empty if it can.
    """

    group: str
    name: str
    distribution: str
    loads: str
    problem: str = ""


def is_path(name: str) -> bool:
    """Return whether a name in a job file is a class's path, `module:Class`, instead of a registered name.

    Args:
        name: The name.

    Returns:
        True for a path.

    Example:
        >>> from headway.plugins.registry import is_path
        >>> is_path("mypkg.target:Target"), is_path("kubernetes")
        (True, False)
    """
    return CLASS_PATH.fullmatch(name) is not None


@cache
def entry_points() -> Mapping[str, Mapping[str, tuple[EntryPoint, ...]]]:
    """Return the entry points of all installed packages, by group of Headway and name. Imports none of them."""
    from importlib import metadata

    found: dict[str, dict[str, tuple[EntryPoint, ...]]] = {}
    for group in (each for each in metadata.entry_points().groups if each.startswith("headway.")):
        names = found.setdefault(group.removeprefix("headway."), {})
        for each in metadata.entry_points(group=group):
            if each not in names.get(each.name, ()):  # a package that is on the path twice is one
                names[each.name] = (*names.get(each.name, ()), each)
    return found


def distribution_of(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"


class Registry(MutableMapping[str, T], Generic[T]):
    """The plug-ins of one group by name. Iterating lists names and imports nothing; an entry is made when it is used.

    Args:
        group: Name of the group, such as `targets`; its entry points are those of `headway.targets`.
        what: One of them in words, such as "kind of target".
        built_in: The entries of what ships with Headway, by name.
        made_from: (name, "module:object", loader of that object) -> the entry of a plug-in.
        hints: What to do about well-known names that neither Headway nor an installed package has.

    Example:
        >>> from headway.plugins import RECIPES
        >>> "grading" in RECIPES, "no-such-recipe" in RECIPES
        (True, False)
        >>> RECIPES.distribution("grading")
        'headway'
    """

    def __init__(
        self,
        group: str,
        what: str,
        built_in: Mapping[str, T],
        made_from: Callable[[str, str, Callable[[], Any]], T],
        hints: Mapping[str, str] | None = None,
    ) -> None:
        self.group, self.what, self.hints = group, what, hints or {}
        self.built_in: dict[str, T] = dict(built_in)
        self._made_from = made_from
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __setitem__(self, name: str, entry: T) -> None:
        self.built_in[name] = entry

    def __delitem__(self, name: str) -> None:
        del self.built_in[name]

    def __contains__(self, name: object) -> bool:
        if name in self.built_in:
            return True
        return isinstance(name, str) and (name in _declared() if is_path(name) else name in self._installed)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self.built_in, *self._installed}))

    def __len__(self) -> int:
        return len({*self.built_in, *self._installed})

    @property
    def _installed(self) -> Mapping[str, tuple[EntryPoint, ...]]:
        return entry_points().get(self.group, {})

    def working(self, report: Callable[[str], None] = lambda text: None) -> Iterator[tuple[str, T]]:
        """Yield the entries that can be made, by name.

        Args:
            report: Called with the error of each that cannot.

        Yields:
            Name and entry.
        """
        for name in self:
            try:
                yield name, self[name]
            except BrokenPlugin as error:
                report(str(error))

    def distribution(self, name: str) -> str:
        """Return the package that a plug-in comes from.

        Args:
            name: Its name.

        Returns:
            Name and version; `headway` for what ships with it; the project's folder for a class named by path.
        """
        if name in self.built_in:
            return OURS
        if is_path(name):
            return _declared().get(name, "")
        return " and ".join(map(distribution_of, self._installed.get(name, ())))

    def suggest(self, name: str) -> str:
        """Return the fix of an error about an unknown name.

        Args:
            name: The unknown name.

        Returns:
            The nearest name, what to install, or all names.

        Example:
            >>> from headway.plugins import RECIPES
            >>> RECIPES.suggest("captionning")
            'did you mean captioning?'
        """
        if name.lower() in self.hints:
            return self.hints[name.lower()]
        from difflib import get_close_matches

        near = get_close_matches(name, list(self), n=1)
        return f"did you mean {near[0]}?" if near else f"write one of {', '.join(filter(None, self))}"

    def plugins(self, *, load: bool) -> list[InstalledPlugin]:
        """List everything in the group, also what cannot be used.

        Args:
            load: Whether to import each one to find out if it works.

        Returns:
            One row per plug-in, sorted by name; those that ship with Headway are not imported.
        """
        ours = [
            InstalledPlugin(group=self.group, name=name, distribution=OURS, loads="") for name in sorted(self.built_in)
        ]
        others = [self._row(point, load=load) for points in self._installed.values() for point in points]
        return sorted([*ours, *others], key=lambda row: (row.name, row.distribution != OURS))

    def _row(self, point: EntryPoint, *, load: bool) -> InstalledPlugin:
        problem = ""
        if point.name in self.built_in:
            problem = f"not used: Headway has a {self.what} of that name"
        elif load:
            try:
                self[point.name]
                load_object(point.value, what=f"the {self.what} {point.name}", fix="")
            except HeadwayError as error:
                problem = error.problem.what
        distribution = distribution_of(point)
        return InstalledPlugin(
            group=self.group, name=point.name, distribution=distribution, loads=point.value, problem=problem
        )

    def _make(self, name: str) -> T:
        if is_path(name):
            if name not in _declared():
                raise KeyError(name)
            root = _declared()[name]
            return self._checked(name, name, f"the {self.what} {name}", f"fix it in {root or 'its package'}", root)
        points = self._installed.get(name, ())
        if not points:
            raise KeyError(name)
        origin = self.distribution(name)
        if len(points) > 1:
            what = f"{len(points)} packages have a {self.what} named {name}: {origin}"
            raise BrokenPlugin(what, fix=f"pip uninstall {' or '.join(_package(point) for point in points)}")
        package = _package(points[0])
        fix = f"pip install --upgrade {package}, or pip uninstall {package}"
        return self._checked(name, points[0].value, f"the {self.what} {name} of {origin}", fix)

    def _checked(self, name: str, path: str, what: str, fix: str, root: str = "") -> T:
        def load() -> Any:
            return load_object(path, what=what, fix=fix, root=root)

        try:
            return self._made_from(name, path, load)
        except (TypeError, ValueError) as error:  # it is not what the group requires
            raise BrokenPlugin(f"{what} cannot be used: {error}", where=path, fix=fix) from None


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def load_object(path: str, *, what: str, fix: str, root: str = "") -> Any:
    """Import the object at "module:name". Whatever it raises becomes an error that names the plug-in.

    Args:
        path: The object's path.
        what: The plug-in, in words.
        fix: What to do about one that cannot be loaded.
        root: A folder to import it from besides the installed packages: that of the job file.

    Returns:
        The object.

    Raises:
        BrokenPlugin: If it cannot be imported, or the module has no such name.
    """
    module, _, name = path.partition(":")
    if root and root not in sys.path:
        sys.path.append(root)  # last: a project's file never hides a module of Headway or of the standard library
    try:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        wanted = error.name or module
        if module == wanted or module.startswith(f"{wanted}."):
            place = f"neither in {root} nor installed" if root else "not installed"
            raise BrokenPlugin(f"{what} cannot be loaded: the module {wanted} is {place}", fix=fix) from None
        raise BrokenPlugin(f"{what} cannot be loaded: it needs {wanted}", fix=f"pip install {wanted}") from None
    except AttributeError as error:
        raise BrokenPlugin(f"{what} cannot be loaded: {error}", where=path, fix=fix) from None
    except HeadwayError:
        raise
    except Exception as error:  # noqa: BLE001  a plug-in's own code may raise anything when it is imported
        why = f"{type(error).__name__}: {error}"
        raise BrokenPlugin(f"{what} cannot be loaded: {why}", where=path, fix=fix) from None
    return found


# Classes named by path in a job file
#
# A run folder or a bundle may come from anybody, so a path in its record is imported only if a job file that was read
# on this machine names it too. `declare` remembers that, so that later verbs find the class without the job file.

_paths: dict[str, str] = {}  # path -> folder of the job file


def declare(path: str, root: str | Path, *, remember: bool = False) -> None:
    """Allow a class named by path, because a job file of this user names it.

    Args:
        path: The class, as "module:Class".
        root: The job file's folder, from which it is imported.
        remember: Whether later processes of this user may import it, too.

    Example:
        >>> from headway.plugins import TRACKERS
        >>> from headway.plugins.registry import declare
        >>> "mine.tracker:Mine" in TRACKERS
        False
        >>> declare("mine.tracker:Mine", ".")
        >>> "mine.tracker:Mine" in TRACKERS
        True
    """
    folder = str(Path(root).resolve())
    known = _declared().get(path)
    _paths[path] = folder
    if remember and known != folder:
        _write_declared({**_recorded(), path: folder})


def _declared() -> Mapping[str, str]:
    return {**_recorded(), **_paths}


def _record() -> Path:
    return state_dir() / "plugin-classes.json"


def _recorded() -> dict[str, str]:
    try:
        known = json.loads(_record().read_bytes())
        return {str(path): str(root) for path, root in known.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _write_declared(known: Mapping[str, str]) -> None:
    """Record the classes for later verbs. Without the record they must run where the job file is read."""
    record = _record()
    temporary = record.with_name(f"{record.name}.{os.getpid()}")
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(known, indent=2))
        os.replace(temporary, record)
    except OSError:
        pass


def unknown_path(name: str) -> BadInput:
    """Return the error about a class by path that no job file of this machine names."""
    what = f"{name} is a class of a project that this machine has not used, and is not imported"
    return BadInput(what, fix="headway plan in the project's folder, if you trust its code; then again")


def object_at(path: str) -> Any:
    """Import the object at "module:name" of Headway itself, or of a plug-in that has been loaded."""
    module, _, name = path.partition(":")
    return attrgetter(name)(import_module(module))


def article(found: object) -> str:
    """Name an object for an error: `the class X`, or `a dict`."""
    return f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
