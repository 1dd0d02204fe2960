"""Every Python block of the README and of docs/ runs; every file that they name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    for page in PAGES:
        for i, block in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            yield pytest.param(block, id=f"{page.stem}-{i}")


@pytest.mark.parametrize("block", blocks("python"))
def test_python_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), {"__name__": "block"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_links_to_exists(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    missing = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("block", blocks("bash"))
def test_every_script_that_is_named_exists(block):
    modules = re.findall(r"python -m (experiments\.\w+)", block)
    assert all((ROOT / f"{module.replace('.', '/')}.py").exists() for module in modules)
