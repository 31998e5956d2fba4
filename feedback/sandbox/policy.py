"""What a worker may read, execute and write: an allow-list made by the parent, enforced by Landlock in the worker.

An allow-list hides by silence: other runs, other candidates, the checkout, the home folder are simply not in it. What
needs work is an installed copy of the target *inside* an allowed folder (site-packages, /usr): `carve` allows the rest
of the folder around it. Reads the file system, changes nothing.
"""

from __future__ import annotations

import glob
import site
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

#: Packages of the judging side: they hold starts, answers and the evaluator, so no candidate reads an installed copy.
JUDGE_PACKAGES = ("feedback", "infra_agent", "skeletons", "experiments")

#: Programs and libraries of the system: the C compiler and what it needs, ld.so, the interpreter's own libraries.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")

#: Machine facts and C library configuration; nothing that holds a secret.
_FACTS = (
    *("/sys", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems", "/proc/loadavg"),
    *("/proc/uptime", "/proc/sys", "/proc/devices", "/proc/modules", "/proc/driver/nvidia"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/localtime"),
    *("/etc/timezone", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/os-release", "/etc/alternatives"),
    *("/etc/mime.types", "/etc/locale.alias"),
)

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_ACCELERATORS = ("/dev/nvidia*", "/dev/kfd", "/dev/dri")

_WEIGHTS = ("*.safetensors", "*.gguf", "*.bin")


class Rule(NamedTuple):
    """One grant: `access` is a word of `feedback.sandbox.landlock.ACCESS`; it covers everything beneath `path`."""

    path: str
    access: str


@dataclass(frozen=True)
class Interpreter:
    """The Python that workers run: its prefixes and the folders that hold installed packages, all resolved."""

    prefixes: tuple[Path, ...]
    site_folders: tuple[Path, ...]

    @classmethod
    def current(cls) -> Interpreter:
        """That of this process; folders that do not exist are left out."""
        user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        folders = _existing([*site.getsitepackages(), *user])
        prefixes = _existing([sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix])
        return cls(tuple(prefixes), tuple(folders))


def installed_copies(names: Collection[str], folders: Iterable[Path]) -> list[Path]:
    """Where `folders` hold a top-level package or module of these names: source, compiled, and cached byte code."""
    patterns = [p for name in names for p in (name, f"{name}.py", f"{name}.*.so", f"__pycache__/{name}.*.pyc")]
    return sorted({folder / match for folder in folders for p in patterns for match in glob.glob(p, root_dir=folder)})


def carve(root: Path, hidden: Collection[Path], access: str) -> Iterator[Rule]:
    """Rules that give `access` to all that now lies under `root` except `hidden`.

    Landlock rules add up and cannot be taken back, so the folders on the way to something hidden are opened entry by
    entry; their names stay visible. Links are not followed: what one points at needs its own grant. `hidden` paths
    outside `root` do not matter.
    """
    inside = [path for path in hidden if path != root and path.is_relative_to(root)]
    if not inside:
        yield Rule(str(root), access)
        return
    yield Rule(str(root), "list")
    for child in sorted(root.iterdir()):
        if child not in inside and not child.is_symlink():
            yield from carve(child, inside, access)


def module_folders(top: str, interpreter: Interpreter) -> list[Path]:
    """The module path of a worker behind its tree: installed packages, and folders that `.pth` files name.

    Lines of `.pth` files that run code are not run: editable installations put finders there, which would supply the
    target from the checkout. A folder named by one is left out when it holds the target or the judge, for the same
    reason.
    """
    linked = _linked_folders(interpreter.site_folders)
    strangers = [folder for folder in linked if not installed_copies({top, *JUDGE_PACKAGES}, [folder])]
    return list(dict.fromkeys([*interpreter.site_folders, *strangers]))


def interpreter_rules(top: str, interpreter: Interpreter, judge: Path) -> list[Rule]:
    """What any worker may reach: system, interpreter and packages, without copies of the target and of the judge.

    `top` is the target's top-level package; `judge` the folder that holds this distribution: a checkout is hidden as a
    whole, wherever it lies, and in site-packages its packages are.
    """
    names = {top, *JUDGE_PACKAGES}
    modules = module_folders(top, interpreter)
    folders = [*modules, *_linked_folders(interpreter.site_folders), *_existing(sys.path)]
    hidden = installed_copies(names, folders)
    if judge not in interpreter.site_folders:
        hidden.append(judge)
    rules: list[Rule] = []
    for root in _outermost([*_existing(_SYSTEM), *interpreter.prefixes, *modules], hidden):
        rules += carve(root, hidden, "execute")
    rules += [Rule(path, "read") for path in _FACTS]
    rules += [Rule(path, "device") for path in (*_DEVICES, *(p for g in _ACCELERATORS for p in sorted(glob.glob(g))))]
    return rules


def tree_rules(root: Path) -> list[Rule]:
    """The tree itself, read-only, without its git history. `root` must be resolved."""
    git = root / ".git"
    return list(carve(root, [git] if git.is_dir() else [], "read"))


def weight_rules(config: dict[str, object]) -> list[Rule]:
    """Reading the weights that a launch configuration names by path.

    Only what looks like a model is granted (a weight file, or a folder with a `config.json` and weight files), so that
    a configuration cannot open a folder of something else. Links inside the folder are granted with what they point at,
    when that is a file (a hub's cache is made of them).
    """
    rules: list[Rule] = []
    for value in config.values():
        if not isinstance(value, str) or "/" not in value:
            continue
        path = Path(value).expanduser()
        if path.is_file() and any(path.match(pattern) for pattern in _WEIGHTS):
            rules.append(Rule(str(path.resolve()), "read"))
        elif path.is_dir() and (path / "config.json").is_file() and any(any(path.glob(w)) for w in _WEIGHTS):
            linked = [child.resolve() for child in path.iterdir() if child.is_symlink()]
            rules += [Rule(str(p), "read") for p in (path.resolve(), *linked) if p == path.resolve() or p.is_file()]
    return rules


def _linked_folders(site_folders: Iterable[Path]) -> list[Path]:
    """Folders that `.pth` files add to the module path, editable installations among them."""
    lines = [
        (folder, line.strip())
        for folder in site_folders
        for file in sorted(folder.glob("*.pth"))
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    code = ("#", "import ", "import\t")
    return _existing(folder / line for folder, line in lines if line and not line.startswith(code))


def _existing(paths: Iterable[str | Path]) -> list[Path]:
    """The folders among `paths`, resolved, each once, in order."""
    return list(dict.fromkeys(Path(path).resolve() for path in paths if path and Path(path).is_dir()))


def _outermost(roots: list[Path], hidden: Collection[Path]) -> list[Path]:
    """`roots` less those that another root covers already, seen through what is hidden between the two."""
    return [
        root
        for root in roots
        if not any(
            root != other
            and root.is_relative_to(other)
            and not any(root.is_relative_to(h) and h.is_relative_to(other) for h in hidden)
            for other in roots
        )
    ]
