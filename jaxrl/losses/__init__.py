"""Losses: one equation, one function. Pure, for one sample; ``vmap`` and average outside."""

from jaxrl.losses import categorical, deterministic, policy_gradient, soft, value

__all__ = ["categorical", "deterministic", "policy_gradient", "soft", "value"]
