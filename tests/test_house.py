"""House rules: which way imports go, how long things may get, and that documents are true."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.command_line import parse_arguments

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kernels_pallas", "zaya_jax", "experiments")
CODE_FOLDERS = (*PACKAGES, "benchmarks", "tests")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

# What each package may import of the others.
PACKAGE_IMPORTS = {
    "kernels_pallas": set(),
    "zaya_jax": {"kernels_pallas"},
    "experiments": {"zaya_jax", "kernels_pallas"},
}
KERNEL_LIBRARIES = {"jax", "numpy", "jaxtyping"}

# What each room of zaya_jax may import of the others. A new room is added here.
_SIZES = {"config", "presets", "model_size"}
ROOM_IMPORTS: dict[str, set[str]] = {
    "__main__": {"completion", "installation"},
    "installation": set(),
    "completion": set(),
    "variants": set(),
    "config": {"variants"},
    "kernel_choice": {"config"},
    "released": {"config"},
    "presets": {"config"},
    "model_size": {"config", "variants"},
    "lora_settings": {"config"},
    "lora": {"config", "lora_settings"},
    "parallel": {"config"},
    "model": {"config", "variants", "parallel"},
    "data": {"config"},
    "optimizer": {"config", "kernel_choice"},
    "checkpoint": {*_SIZES, "released", "lora_settings", "parallel", "model"},
    "inference": {*_SIZES, "released", "parallel", "model", "data", "checkpoint"},
    "training": {
        *_SIZES,
        "kernel_choice",
        "lora",
        "lora_settings",
        "parallel",
        "model",
        "data",
        "optimizer",
        "checkpoint",
        "inference",
    },
    "rl": {
        *_SIZES,
        "parallel",
        "model",
        "data",
        "optimizer",
        "checkpoint",
        "inference",
        "training",
    },
    "evaluation": {
        *_SIZES,
        "parallel",
        "model",
        "data",
        "optimizer",
        "checkpoint",
        "inference",
        "training",
        "rl",
    },
    "systems": {*_SIZES, "parallel", "data", "optimizer", "checkpoint", "training"},
}

MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60
# Longer than that, each for a reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in python_files(*PACKAGES)}


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in the file; names of our own modules in full."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write relative imports in full"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in inner if name in MODULES]
            yield from modules
            if len(modules) < len(inner):
                yield str(node.module)


def room(module: str) -> str:
    """The part of zaya_jax a module belongs to; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def test_packages_import_one_way_only() -> None:
    wrong = [
        f"{name} imports {target}"
        for name, path in MODULES.items()
        for target in imports(path)
        if (package := name.split(".")[0]) != (other := target.split(".")[0])
        and other in PACKAGES
        and other not in PACKAGE_IMPORTS[package]
    ]
    assert wrong == []


def test_kernels_know_only_arrays() -> None:
    allowed = KERNEL_LIBRARIES | set(sys.stdlib_module_names) | {"kernels_pallas"}
    wrong = [
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if name.startswith("kernels_pallas")
        for target in imports(path)
        if target.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_rooms_import_one_way_only() -> None:
    wrong = []
    for name, path in MODULES.items():
        if name.split(".")[0] != "zaya_jax" or not room(name):
            continue
        assert room(name) in ROOM_IMPORTS, f"{name}: say in ROOM_IMPORTS what this room may import"
        for target in imports(path):
            is_other = target.startswith("zaya_jax") and room(target) != room(name)
            if is_other and room(target) not in ROOM_IMPORTS[room(name)]:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_imports_have_no_circles() -> None:
    graph = {name: {t for t in imports(path) if t in MODULES} for name, path in MODULES.items()}
    finished: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in finished:
            for target in sorted(graph[name]):
                visit(target, (*trail, name))
            finished.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_importing_the_package_imports_no_library() -> None:
    script = "import sys, zaya_jax; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


def test_files_and_functions_fit_the_eye() -> None:
    long_files, long_functions = {}, {}
    for path in python_files(*CODE_FOLDERS):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        if (lines := text.count("\n")) > MOST_FILE_LINES:
            long_files[name] = lines
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    long_functions[f"{name}:{node.name}"] = lines
    assert {n: s for n, s in long_files.items() if n not in LONG_FILES} == {}
    assert {n: s for n, s in long_functions.items() if n not in LONG_FUNCTIONS} == {}
    assert set(LONG_FILES) == set(long_files), "exceptions that nothing needs any more"
    assert set(LONG_FUNCTIONS) == set(long_functions), "exceptions that nothing needs any more"


def test_every_test_folder_is_a_package() -> None:
    # Otherwise two test files of the same name hide each other.
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def documented_paths(document: Path) -> Iterator[str]:
    """Targets of links, and words in backquotes that look like a path of the repository."""
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            yield target
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    rooms = "|".join([*CODE_FOLDERS, "docs", r"\.ci"])
    for word in re.findall(r"`([^`\s]+)`", prose):
        if re.fullmatch(rf"(?:{rooms})/[\w./*-]*|[\w.-]+\.(?:md|toml)|Makefile", word):
            yield word


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documented_paths_exist(document: Path) -> None:
    paths = list(documented_paths(document))
    missing = [
        path
        for path in paths
        if not list(ROOT.glob(path)) and not (document.parent / path).exists()
    ]
    assert missing == []


def test_the_readme_tour_is_checked() -> None:
    tour = (ROOT / "README.md").read_text(encoding="utf-8").split("## Read in this order")[1]
    tour = tour.split("\n## ")[0]
    stops = re.findall(r"^\d+\. \[`([^`]+)`\]\(([^)]+)\)", tour, flags=re.MULTILINE)
    assert len(stops) >= 8
    assert [target for name, target in stops if name != target] == []


def documented_commands() -> list[tuple[str, str]]:
    """(document, command) for every `make` and `python` line in a code block."""
    commands = []
    for document in DOCUMENTS:
        for block in re.findall(
            r"```\w*\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL
        ):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.split(" #")[0].removeprefix("$ ").strip()
                if re.match(r"(make|\S*python\S*) ", command) and " -c " not in command:
                    commands.append((document.name, command))
    return commands


@pytest.mark.parametrize(("document", "command"), documented_commands())
def test_documented_commands_parse(
    document: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(command)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = [word for word in words if "=" not in word]
        unknown = [t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)]
        assert unknown == [], f"{document}: make has no such target"
    elif words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None, f"{document}: no module {words[1]}"
        if words[1].startswith("experiments.") and "--help" not in words:
            parse = getattr(importlib.import_module(words[1]), "parse", None)
            if parse is not None:  # a command line of its own
                parse(words[2:])
            else:
                parse_arguments(words[2:], program=words[1], summary="")
    else:
        assert (ROOT / words[0]).exists(), f"{document}: no file {words[0]}"


def test_nothing_names_a_registry_or_somebodys_machine() -> None:
    hosts = ["py" + "pi.org", "python" + "hosted.org", "registry.npm" + "js"]
    pattern = re.compile(
        r"(?<![\w.~-])/(?:home|root|Users|work)/\w|" + "|".join(re.escape(host) for host in hosts)
    )
    texts = [*python_files(*CODE_FOLDERS), *DOCUMENTS]
    texts += [ROOT / name for name in ("pyproject.toml", "Makefile", ".ci/run", ".gitignore")]
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in texts
        for match in pattern.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
