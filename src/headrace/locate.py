"""locate_model(): what every door does first."""

from __future__ import annotations

import dataclasses

from headrace.core.config import Config
from headrace.models.sources import locate


def locate_model(config: Config) -> Config:
    """The same settings, checked, with the model as a local path; it is fetched first if need be."""
    config = config.resolve()
    path = locate(config.model, revision=config.revision)
    return dataclasses.replace(config, model=str(path), revision=None)
