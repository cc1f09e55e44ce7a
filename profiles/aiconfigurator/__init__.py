"""Bundles composed from the measured kernel tables of the package aiconfigurator-core.

`source.py` says where the data are, one file a table how it is read, `compose.py` how they become a
bundle. The package holds kernels timed one by one under CUDA graphs with cold weights: there is no
launch or host time in them, and what is not in them is modelled and labelled so.
"""

from profiles.aiconfigurator.compose import load_bundle
from profiles.aiconfigurator.shape import Shape
from profiles.aiconfigurator.source import known_systems, load_card, versions_of

__all__ = ["Shape", "known_systems", "load_bundle", "load_card", "versions_of"]
