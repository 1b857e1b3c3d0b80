"""Classes and values that the person who runs a command hands over, for plan files that name them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from cloister.errors import InputError

__all__ = ["own_types", "own_value"]


def own_types(names: Iterable[str] | None) -> list[object]:
    """Return what `--types` names, each as `module:Class` or `path/to/file.py:Class`.

    This runs the module's code, as importing does: a plan file cannot ask for it, only the command line can.
    """
    return [own_value(name, "--types") for name in names or ()]


def own_value(name: str, option: str) -> object:
    """Return what an option names, as `own_types` does."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute.isidentifier():
        raise InputError(f"{option} must read module:Class or file.py:Class. Got {name!r}.")
    try:
        module = _from_file(Path(place), option) if place.endswith(".py") else _from_path(place, option)
    except InputError:
        raise
    except Exception as error:  # it is somebody's own code, and may fail in any way
        raise InputError(
            f"{option} {name}: {place} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    if attribute not in vars(module):
        raise InputError(f"{option} {name}: {place} has no {attribute!r}. Check the spelling.")
    return vars(module)[attribute]


def _from_path(place: str, option: str) -> ModuleType:
    """Import a module that is installed, or lies in the folder where the command is given."""
    _let_import_from(Path.cwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise InputError(
            f"{option}: there is no module {place!r} here. Install it, give the command in the folder "
            "where it lies, or name its file: path/to/file.py:Class."
        ) from None


def _from_file(path: Path, option: str) -> ModuleType:
    """Import a file under its own name, as `import` does in the folder where it lies."""
    if not path.is_file():
        raise InputError(f"{option}: there is no file {path}. Check the path.")
    loaded = sys.modules.get(path.stem)
    if loaded is None:
        _let_import_from(path.resolve().parent)
        return _executed(path)
    if Path(str(vars(loaded).get("__file__"))).resolve() != path.resolve():
        raise InputError(f"{option}: {path} has the name of another module, {path.stem!r}. Rename the file.")
    return loaded


def _executed(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _let_import_from(folder: Path) -> None:
    """Add a folder after all others: nothing that lies in it takes an installed module's place."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
