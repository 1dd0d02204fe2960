"""Every Python block of the README and of docs/ runs; every file that they name is there."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from experiments import cli
from jaxrl.errors import UsageError

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


class Parsed(Exception):
    """The flags were understood."""


def commands():
    """Every line of a shell block that runs a script, but for those with a place to fill in."""
    found = {}
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                called = re.search(r"python -m experiments\.(\w+)(.*)", line)
                if called and not re.search(r"…|\$@|--help", line):
                    words = shlex.split(called[2], comments=True)
                    found[f"{called[1]} {' '.join(words)}"] = (called[1], words)
    return [pytest.param(*command, id=text) for text, command in found.items()]


@pytest.mark.parametrize("module, words", commands())
def test_every_flag_of_a_command_is_understood(module, words, monkeypatch, tmp_path):
    parse = cli.parse

    def stop(*arguments, **options):
        parse(*arguments, **options)
        raise Parsed

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "parse", stop)
    script = importlib.import_module(f"experiments.{module}")
    if "--resume" in words:  # a run's own settings are read in place of flags
        with pytest.raises(UsageError, match="is not a run folder"):
            script.main(words, Console(quiet=True))
    else:
        with pytest.raises(Parsed):
            script.main(words, Console(quiet=True))
