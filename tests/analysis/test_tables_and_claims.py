"""Tables as text, claims on the terminal and on disk, what is exported, and the drawing functions."""

import io
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

import jaxrl.analysis as analysis
from jaxrl.analysis import Claim, figures, tables
from jaxrl.errors import UsageError


def cell(value, low, high):
    return analysis.Interval(value, low, high, 0.95, "skew_t", 5)


ROWS = {
    "sac_new": [cell(12.3, 10.2, 14.1), cell(0.5, 0.4, 0.6)],
    "td3 & co": [cell(8.0, 6.5, 9.4), cell(0.62, 0.48, 0.74)],
    "ppo": [None, "n/a"],
}


def test_markdown_table():
    assert analysis.markdown_table(ROWS, ["return", "loss [%]"], corner="method") == (
        "| method | return | loss \\[%\\] |\n"
        "| :-- | --: | --: |\n"
        "| sac\\_new | **12 \\[10, 14\\]** | 0.5 \\[0.4, 0.6\\] |\n"
        "| td3 & co | 8 \\[6, 9\\] | 0.6 \\[0.5, 0.7\\] |\n"
        "| ppo |  | n/a |\n"
    )


def test_latex_table():
    got = analysis.latex_table(ROWS, ["return", "loss %"], corner="method", caption="50 % better", label="tab:x")
    assert got == (
        "\\begin{table}[t]\n\\centering\n\\caption{50 \\% better}\n\\label{tab:x}\n"
        "\\begin{tabular}{lrr}\n\\toprule\nmethod & return & loss \\% \\\\\n\\midrule\n"
        "sac\\_new & \\textbf{12 [10, 14]} & 0.5 [0.4, 0.6] \\\\\n"
        "td3 \\& co & 8 [6, 9] & 0.6 [0.5, 0.7] \\\\\n"
        "ppo &  & n/a \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )
    assert "\\begin{table}" not in analysis.latex_table(ROWS, ["a", "b"])
    assert "{}[x] & 1 \\\\" in analysis.latex_table({"[x]": [1]}, ["a"])  # else \\[x] would be a length


def test_escaping():
    assert tables.escape_latex("a_b^2 {50%} \\x ~ $#& <1>") == (
        r"a\_b\textasciicircum{}2 \{50\%\} \textbackslash{}x \textasciitilde{} \$\#\& \textless{}1\textgreater{}"
    )
    assert tables.escape_markdown("a|b *c* [d] `e`\nf") == r"a\|b \*c\* \[d\] \`e\` f"


def test_best_only_where_it_separates():
    a, b, c = cell(3, 2, 4), cell(1, 0.5, 1.9), cell(2, 1, 3)
    assert tables.best([a, b]) == [True, False]
    assert tables.best([a, b, c]) == [False] * 3
    assert tables.best([a, b], lower_is_better=True) == [False, True]
    assert tables.best([a, None, 7.0]) == [False] * 3  # nothing to stand apart from
    assert tables.best([a, cell(1, math.nan, math.nan), b]) == [True, False, False]
    per_column = analysis.markdown_table({"x": [a, a], "y": [b, b]}, ["r", "l"], lower_is_better=[False, True])
    assert per_column.splitlines()[2].count("**") == per_column.splitlines()[3].count("**") == 2
    with pytest.raises(UsageError, match="row 'x' has 1 cells for 2 columns"):
        analysis.markdown_table({"x": [a]}, ["r", "l"])
    with pytest.raises(UsageError, match="lower_is_better has 1"):
        analysis.latex_table({"x": [a, a]}, ["r", "l"], lower_is_better=[True])


CLAIMS = [
    Claim("faster", "fewer steps [x2]", 12.0, 4.0, 21.0, True, "10 seeds"),
    Claim("equal", "as good", np.float32(0.5), math.nan, math.nan, None),
    Claim("worse", "less memory", 3.0, 2.5, math.inf, np.bool_(False)),
]


def test_claims_table_shows_everything():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(analysis.claims_table(CLAIMS, "Claims [test]"))
    text = console.export_text()
    for expected in ("Claims [test]", "fewer steps [x2]", "12 [4, 21]", "holds", "10 seeds", "cannot tell", "0.5"):
        assert expected in text
    assert "does not hold" in text


def test_claims_on_disk(tmp_path):
    path = analysis.write_claims(tmp_path / "deep" / "claims.json", CLAIMS)
    assert json.loads(path.read_text())[0] == {
        "name": "faster",
        "statement": "fewer steps [x2]",
        "value": 12.0,
        "low": 4.0,
        "high": 21.0,
        "holds": True,
        "detail": "10 seeds",
    }
    back = analysis.read_claims(path)
    assert back[0] == CLAIMS[0] and back[1].holds is None and math.isnan(back[1].low) and back[2].holds is False
    assert [p.name for p in path.parent.iterdir()] == ["claims.json"]
    with pytest.raises(UsageError, match="two claims are named 'faster'"):
        analysis.write_claims(path, [CLAIMS[0], CLAIMS[0]])
    assert len(analysis.read_claims(path)) == 3


@pytest.mark.parametrize(
    ("low", "high", "holds"), [(1.1, 2, True), (0.5, 0.9, False), (0.9, 1.1, None), (math.nan, math.nan, None)]
)
def test_claim_above(low, high, holds):
    assert analysis.claim_above("x", "more than 1", 1.0, low, high, 1.0).holds is holds


def test_everything_exported_is_there():
    for name in analysis.__all__:
        assert getattr(analysis, name) is not None
    assert set(analysis.__all__) <= set(dir(analysis))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = analysis.nothing


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, jaxrl.analysis as a; a.interval, a.verdict, a.claims_table, a.markdown_table, a.band;"
        "print([m for m in ('scipy', 'matplotlib', 'rich', 'pandas', 'flax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_profiles_and_intervals_are_drawn(tmp_path):
    figure, (left, right) = figures.new_figure(columns=2)
    profile = analysis.performance_profile(np.random.default_rng(0).random((5, 3)), np.linspace(0, 1, 11))
    figures.draw_profile(left, *profile, label="sac")
    figures.draw_intervals(right, ["sac", "one run"], [cell(2, 1, 3), cell(1, math.nan, math.nan)], "return")
    np.testing.assert_allclose(left.lines[0].get_ydata(), profile.share)
    assert len(right.patches) == 1 and len(right.lines) == 2 and right.get_xlabel() == "return"
    assert [label.get_text() for label in right.get_yticklabels()] == ["sac", "one run"]
    assert right.yaxis_inverted()  # the first name is at the top
    assert figures.save(figure, tmp_path / "figure").stat().st_size > 0
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows of it
