"""`locust -f loadtest/locustfile.py`: with the web page, headless, with `--processes` or workers elsewhere.

`locust -f loadtest/locustfile.py StreamUser --host http://127.0.0.1:8000 --headless --levels 10:1,10:4,10:16`
"""

from __future__ import annotations

import argparse
import itertools
import sys

from locust import events
from locust.env import Environment
from locust.runners import WorkerRunner

from loadtest.generator import options
from loadtest.generator.measures import Measures
from loadtest.generator.shape import FINISH_S, Levels
from loadtest.generator.users import (
    ChatStreamUser,
    ChatUser,
    CompletionStreamUser,
    CompletionUser,
    GenerateUser,
    StreamUser,
)

__all__ = ["ChatStreamUser", "ChatUser", "CompletionStreamUser", "CompletionUser", "GenerateUser", "StreamUser"]


@events.init_command_line_parser.add_listener
def _options(parser: argparse.ArgumentParser) -> None:
    actions = options.add(parser)
    for name in ("rows", "sources"):
        actions[name].include_in_web_ui = False  # options of the command, not of a run
    actions["api_key"].is_secret = True


@events.init.add_listener
def _init(environment: Environment, **_: object) -> None:
    try:
        plan = options.RunOptions.of(environment.parsed_options)
    except (ValueError, OSError) as error:
        sys.exit(f"loadtest: {error}")
    environment.stop_timeout = environment.stop_timeout or FINISH_S
    environment.mrp_users = itertools.count()
    environment.mrp_measures = Measures(environment)
    environment.events.test_start.add_listener(_start)
    if plan.profile is not None and not isinstance(environment.runner, WorkerRunner):
        environment.shape_class = Levels(plan, lambda: _sources(environment), environment.mrp_measures.level)
        environment.shape_class.runner = environment.runner


def _start(environment: Environment, **_: object) -> None:
    """Gives workers the options of the master, and resets the count of users for every run."""
    environment.mrp_users = itertools.count()
    if not isinstance(environment.runner, WorkerRunner):
        environment.parsed_options.sources = _sources(environment)


def _sources(environment: Environment) -> int:
    return environment.parsed_options.num_users or 1
