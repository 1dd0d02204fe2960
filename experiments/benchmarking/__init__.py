"""The parts of the speed benchmark; see :mod:`experiments.benchmark`."""
