"""From runs to conclusions: aggregates with intervals, comparisons, learning curves, diagnostics, tables, figures.

Everything here loads when it is first named.
"""

import importlib

_WHERE = {
    "claims": ("Claim", "claim_above", "claims_table", "read_claims", "write_claims"),
    "comparisons": ("Comparison", "Verdict", "benjamini_hochberg", "compare", "holm", "verdict", "verdicts"),
    "curves": (
        "Band",
        "Curve",
        "Curves",
        "Reached",
        "align",
        "area",
        "band",
        "median_steps",
        "read_curves",
        "steps_to",
    ),
    "diagnosing": ("diagnosed", "replay_ages"),
    "diagnostics": (
        "cosine_matrix",
        "dormant_fraction",
        "dormant_fractions",
        "effective_rank",
        "explained_variance",
        "feature_rank",
        "gradient_conflict",
        "gradient_norm",
        "numerical_rank",
        "policy_entropy",
        "replay_age_histogram",
        "stable_rank",
        "value_overestimation",
        "weight_norms",
    ),
    "figures": (),
    "intervals": (),
    "profiles": ("Profile", "performance_profile", "probability_of_improvement"),
    "spectral_figures": (),
    "statistics": (
        "Interval",
        "interquartile_mean",
        "interval",
        "mean",
        "median",
        "optimality_gap",
    ),
    "tables": ("escape_latex", "escape_markdown", "latex_table", "markdown_table"),
    "text": ("describe", "numbers"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
__all__ = sorted([*_WHERE, *_MODULE_OF])


def __getattr__(name: str):
    if name in _WHERE:
        return importlib.import_module(f"jaxrl.analysis.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"jaxrl.analysis.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'jaxrl.analysis' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
