"""Writes docs/api.md from the signatures and docstrings of the code, without importing it.

python docs/make_api.py           # writes the page
python docs/make_api.py --check   # exits with status 1 if it is out of date
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
PACKAGES = ("jaxrl", "environments")
HEAD = """# API

Every public function and class, by module: its signature and the first paragraph of its docstring. The code has the
rest: shapes, units, errors and sources. This page is made by `docs/make_api.py`.
"""


def make_page(root: Path = ROOT) -> str:
    """The whole page."""
    parts = [HEAD]
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py"), key=module_name):
            text = describe_module(path, root)
            if text:
                parts.append(text)
    return "\n".join(parts)


def module_name(path: Path) -> tuple[str, ...]:
    """The parts of a dotted name, a package before what is in it."""
    return tuple(part for part in path.with_suffix("").parts if part != "__init__")


def describe_module(path: Path, root: Path) -> str:
    """A section for a module with anything public in it; nothing for the others."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    entries = [entry for node in tree.body if (entry := describe(node))]
    name = ".".join(module_name(path.relative_to(root)))
    about = first_paragraph(tree)
    if not entries and not about:
        return ""
    return "\n".join([f"## {name}\n", *([about + "\n"] if about else []), *entries])


def describe(node: ast.stmt) -> str:
    """An entry for a public function or class; nothing for anything else."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
        return ""
    head = function_head(node) if isinstance(node, ast.FunctionDef) else class_head(node)
    lines = [f"**`{head}`**"]
    if about := first_paragraph(node):
        lines.append(about)
    if isinstance(node, ast.ClassDef):
        methods = [m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")]
        if methods:
            lines.append("Methods: " + ", ".join(f"`{function_head(method)}`" for method in methods) + ".")
    return "\n\n".join(lines) + "\n"


def function_head(node: ast.FunctionDef) -> str:
    """``name(arguments) -> result``, without ``self``."""
    arguments = ast.unparse(node.args)
    arguments = re.sub(r"^self(, )?", "", arguments)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({arguments}){returns}"


def class_head(node: ast.ClassDef) -> str:
    """``Name(field, field=default)`` for a container of fields; ``Name`` alone for another class."""
    fields = []
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id[0] != "_":
            fields.append(line.target.id + (f"={ast.unparse(line.value)}" if line.value else ""))
    return f"{node.name}({', '.join(fields)})" if fields else node.name


def first_paragraph(node: ast.AST) -> str:
    """The first paragraph of a docstring, as Markdown on one line."""
    text = ast.get_docstring(node) or ""  # type: ignore[arg-type]
    paragraph = " ".join(text.split("\n\n")[0].split())
    paragraph = re.sub(r":\w+:`~?([^`]*)`", lambda match: f"`{match.group(1)}`", paragraph)
    return paragraph.replace("``", "`")


def main() -> int:
    page = make_page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
            print("docs/api.md is out of date; run python docs/make_api.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
