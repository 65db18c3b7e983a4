"""`locust -f loadtest/locustfile.py`: with the web page, headless, with `--processes` or workers elsewhere.

`locust -f loadtest/locustfile.py StreamUser --host http://127.0.0.1:8000 --headless --levels 10:1,10:4,10:16`
"""

import argparse
import itertools
import sys
import time

import gevent
from locust import LoadTestShape, events, stats
from locust.env import Environment
from locust.rpc import Message
from locust.runners import MasterRunner, WorkerRunner
from locust.stats import CSV_STATS_INTERVAL_SEC

from loadtest.generator import options
from loadtest.generator.measures import Measures
from loadtest.generator.users import (
    ChatStreamUser,
    ChatUser,
    CompletionStreamUser,
    CompletionUser,
    GenerateUser,
    StreamUser,
)

__all__ = ["ChatStreamUser", "ChatUser", "CompletionStreamUser", "CompletionUser", "GenerateUser", "StreamUser"]

#: seconds for requests in progress to finish at the end of a run; without them the slowest would not be counted
FINISH_S = 30.0
_AT_ONCE = 100.0  # locust warns above
stats.HISTORY_STATS_INTERVAL_SEC = 1  # of the charts: locust's 5 s are longer than a level may be


class Levels(LoadTestShape):
    """Follows the levels of a plan: the users of a closed loop, or the sources of an open loop."""

    abstract = True  # locust would make one without arguments
    use_common_options = True

    def __init__(self, plan: options.RunOptions, environment: Environment) -> None:
        super().__init__()
        self._plan, self._environment = plan, environment
        self._stage = -1

    def reset_time(self) -> None:
        super().reset_time()
        self._stage = -1

    def tick(self) -> tuple[int, float] | None:
        """The number of users, and how many to start per second. None ends the run.

        After the last level it sends nothing new, and ends when all requests are answered. If the master ended sooner,
        the rows of the last requests would be lost.
        """
        at, profile, is_closed = self.get_run_time(), self._plan.profile, self._plan.loop == "closed"
        sources = _sources(self._environment)
        if at >= profile.seconds:
            is_over = at > profile.seconds + FINISH_S or not self.get_current_user_count()
            return None if is_over else (0 if is_closed else sources, _AT_ONCE)
        stage, level = profile.level(at)
        if stage != self._stage:
            self._stage = stage
            self._environment.mrp_measures.level(time.perf_counter(), profile.stages[stage].seconds, level)
        return max(1, round(level)) if is_closed else sources, _AT_ONCE


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
    if environment.parsed_options.csv_prefix:
        # locust closes its CSV files without the requests since they were last written
        environment.events.quit.add_listener(lambda **_: gevent.sleep(1.1 * CSV_STATS_INTERVAL_SEC))
    if isinstance(environment.runner, MasterRunner):
        _wait_for_workers(environment.runner)
    if plan.profile is not None and not isinstance(environment.runner, WorkerRunner):
        environment.shape_class = Levels(plan, environment)
        environment.shape_class.runner = environment.runner


def _wait_for_workers(runner: MasterRunner) -> None:
    """Makes the end of a run wait for the workers. Their last report follows the requests in progress.

    locust itself waits half a second.
    """
    quit_at_once = runner.quit

    def quit_after_workers() -> None:
        runner.quit = quit_at_once  # type: ignore[method-assign]  # locust calls it again when the last worker is gone
        runner.stop(send_stop_to_client=False)
        for client in runner.clients.all:
            runner.server.send_to_client(Message("quit", None, client.id))
        with gevent.Timeout(2 * FINISH_S, False):
            while runner.worker_count:
                gevent.sleep(0.1)
        quit_at_once()

    runner.quit = quit_after_workers  # type: ignore[method-assign]


def _start(environment: Environment, **_: object) -> None:
    """Gives workers the options of the master, and resets the count of users for every run."""
    environment.mrp_users = itertools.count()
    if not isinstance(environment.runner, WorkerRunner):
        environment.parsed_options.sources = _sources(environment)


def _sources(environment: Environment) -> int:
    return environment.parsed_options.num_users or 1
