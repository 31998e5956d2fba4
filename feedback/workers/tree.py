"""Importing the target from one tree and from nowhere else (worker side).

Source files under the tree are read, hashed and compiled in one go: the digest is of the very bytes that run, and
byte code that lies in the tree, which a candidate could have prepared from other source, is never looked at.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType
from typing import Any


class TargetTree:
    """The tree at `root` (resolved) that holds the adapter module `adapter`.

    Folders of installed packages are not part of it, even where they lie in it (a virtual environment in a checkout).
    """

    def __init__(self, root: str, adapter: str, packages: Sequence[str] = ()) -> None:
        self.root = root
        self._packages = tuple(folder + os.sep for folder in packages if folder.startswith(root + os.sep))
        self.adapter = adapter
        self.top = adapter.partition(".")[0]
        #: Path relative to the root -> SHA-256 of the source that was compiled.
        self.compiled: dict[str, str] = {}
        self._adapter_place: str | None = None

    def load(self) -> Any:
        """Import the adapter and return its `create()`.

        Raises what the target raises, `ImportError` when it is not there.
        """
        if any(name.partition(".")[0] == self.top for name in sys.modules):
            raise ImportError(f"{self.top} was imported before its tree was known")
        if not any(os.path.exists(os.path.join(self.root, self.top + end)) for end in ("", ".py")):
            raise ModuleNotFoundError(f"the tree {self.root} holds no {self.top}", name=self.top)
        self._watch_loaders()
        sys.path.insert(0, self.root)
        module = importlib.import_module(self.adapter)
        place = self.relative(getattr(module, "__file__", None))
        if place is not None:
            self._adapter_place = place.removesuffix("__init__.py")
        if self.foreign():
            raise ImportError("the target was not imported from its tree")  # the parent names the modules
        return module.create()

    def relative(self, path: str | None) -> str | None:
        """`path` relative to the root, links resolved; None when it lies elsewhere."""
        if not path:
            return None
        real = os.path.realpath(path)
        if not real.startswith(self.root + os.sep) or real.startswith(self._packages):
            return None
        return os.path.relpath(real, self.root)

    def in_adapter(self, place: str | None) -> bool:
        """Whether a file (relative) belongs to the adapter: to its module, or to its folder when it is a package."""
        home = self._adapter_place
        if place is None or home is None:
            return False
        return place.startswith(home) if home.endswith(os.sep) else place == home

    def imported(self) -> dict[str, str]:
        """Every file under the root that was imported, relative path -> SHA-256."""
        files = dict(self.compiled)
        for module in list(sys.modules.values()):
            # Compared as text first: resolving the links of a thousand installed modules would take longer than the
            # rest.
            below = [path for path in _origins(module) if path.startswith(self.root + os.sep)]
            below = [path for path in below if not path.startswith(self._packages)]
            for place in filter(None, [self.relative(path) for path in below]):
                if place not in files:
                    with open(os.path.join(self.root, place), "rb") as file:
                        files[place] = hashlib.file_digest(file, "sha256").hexdigest()
        return files

    def foreign(self) -> list[list[str]]:
        """[module, place] of each module of the target's top-level package that did not come from the tree."""
        found = []
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == self.top:
                places = _origins(module) or _folders(module)
                found += [[name, place] for place in places if self.relative(place) is None][:1]
        return found

    def _watch_loaders(self) -> None:
        usual = SourceFileLoader.get_code
        refuse = SourcelessFileLoader.get_code
        tree = self

        def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
            path = loader.get_filename(fullname)
            place = tree.relative(path)
            if place is None:
                return usual(loader, fullname)
            source = loader.get_data(path)
            tree.compiled[place] = hashlib.sha256(source).hexdigest()
            return loader.source_to_code(source, path)

        def get_compiled(loader: SourcelessFileLoader, fullname: str) -> CodeType | None:
            if tree.relative(loader.get_filename(fullname)) is not None:
                raise ImportError(f"{fullname} is byte code without source; a tree is imported from source")
            return refuse(loader, fullname)

        # Patched, not subclassed: `importlib.util.spec_from_file_location` makes these very loaders, whatever the
        # path hooks say.
        SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
        SourcelessFileLoader.get_code = get_compiled  # type: ignore[method-assign]


def _origins(module: ModuleType) -> list[str]:
    """The file of a module, as far as it has one."""
    try:
        spec = getattr(module, "__spec__", None)
        files = [getattr(module, "__file__", None), getattr(spec, "origin", None)]
    except Exception:  # what lies in sys.modules need not be a module, and its attributes may be computed
        return []
    return [file for file in dict.fromkeys(files) if isinstance(file, str) and os.path.isabs(file)]


def _folders(module: ModuleType) -> list[str]:
    """The folders of a package without a file (a namespace package)."""
    try:
        return list(getattr(module, "__path__", ()))
    except TypeError:
        return []
