"""Peers of the speed benchmark: what makes an environment for each, and the workers that run in them."""
