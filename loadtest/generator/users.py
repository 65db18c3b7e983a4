"""locust's users: one class for each route. The plan decides when they send requests.

In a closed loop, a user sends a request, waits for the answer, pauses and sends the next one. In an open loop, a user
is a source of arrivals: each arrival has its own greenlet and does not depend on earlier answers.
"""

import itertools
import random
import time
from collections.abc import Iterable
from typing import ClassVar

import gevent
from gevent.pool import Group
from locust import User, task
from locust.exception import CatchResponseError, StopUser

from loadtest.generator.arrivals import poisson
from loadtest.generator.client import Client
from loadtest.generator.measures import Measures
from loadtest.generator.options import RunOptions
from loadtest.generator.protocol import Observation, Route
from loadtest.generator.rows import UNFINISHED
from loadtest.generator.workload import Json, PlannedRequest, for_openai

_OPEN_CONNECTIONS = 20_000
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class LoadUser(User):
    """Sends requests by the plan. Subclasses name the route."""

    abstract = True
    route: ClassVar[Route]

    def on_start(self) -> None:
        options = self.environment.parsed_options
        self._plan = RunOptions.of(options)
        self._measures: Measures = self.environment.mrp_measures
        self._sources = max(1, options.sources)
        worker = max(0, getattr(self.environment.runner, "worker_index", 0))
        self._source = f"{worker}.{next(self.environment.mrp_users)}"
        self._draw = random.Random(f"{options.workload_seed}/{self._source}")
        self._numbers = itertools.count()
        concurrency = 1 if self._plan.loop == "closed" else _OPEN_CONNECTIONS
        self._client = Client(self.host, options.timeout_s, concurrency, options.api_key)

    def on_stop(self) -> None:
        self._client.close()

    def wait_time(self) -> float:
        """The pause between requests: exponentially distributed, as in the textbook's closed loop."""
        mean = self._plan.think_s
        return self._draw.expovariate(1 / mean) if mean > 0 else 0.0

    @task
    def load(self) -> None:
        if self._plan.loop == "closed":
            self._pause_after(self._ask(time.perf_counter()))
        else:
            self._arrive(poisson(self._plan.profile, 1 / self._sources, self._draw))
            raise StopUser

    def _arrive(self, arrivals: Iterable[float]) -> None:
        began, group = time.perf_counter(), Group()
        try:
            for arrival in arrivals:
                gevent.sleep(max(0.0, began + arrival - time.perf_counter()))
                group.spawn(self._ask, began + arrival)
            group.join()
        finally:
            group.kill()  # the remaining requests are recorded as unfinished

    def _pause_after(self, observation: Observation) -> None:
        """Waits as Retry-After says. Sending again at once would count one outage many times."""
        if not observation.ok:
            after = observation.retry_after
            gevent.sleep(_PAUSE_S if after is None else min(after, _LONGEST_PAUSE_S))

    def _ask(self, due: float) -> Observation:
        planned = self._plan.workload.request(next(self._numbers), self._source)
        observation = Observation(self.route, planned.label, due, time.perf_counter())
        try:
            self._client.ask(self._body(planned), observation)
        finally:
            if observation.error == UNFINISHED:
                self._measures.unfinished(observation)
            else:
                failure = f"{observation.status} {observation.error}" if observation.error else ""
                self.environment.events.request.fire(
                    request_type="POST",
                    name=f"{self.route.name} {observation.mode}",
                    response_time=observation.total_s * 1000,
                    response_length=len(observation.text),
                    context={**self.context(), "observation": observation},
                    exception=CatchResponseError(failure) if failure else None,
                    start_time=time.time() - observation.total_s,
                    url=self.route.path,
                )
        return observation

    def _body(self, planned: PlannedRequest) -> Json:
        return {**planned.body, "stream": self.route.stream}


class StreamUser(LoadUser):
    route = Route("/generate", stream=True, openai=False)
    weight = 3


class GenerateUser(LoadUser):
    route = Route("/generate", stream=False, openai=False)


class _OpenAiUser(LoadUser):
    abstract = True

    def on_start(self) -> None:
        super().on_start()
        self._model = self.environment.parsed_options.model
        if not self._model:
            with self.environment.events.request.measure("GET", "/v1/models") as event:
                self._model = self._client.get("/v1/models")["data"][0]["id"]
            if event["exception"]:
                raise StopUser

    def _body(self, planned: PlannedRequest) -> Json:
        chat = "chat" in self.route.path
        body = for_openai(planned.body, self._model, chat=chat) | {"stream": self.route.stream}
        return body | {"stream_options": {"include_usage": True}} if self.route.stream else body


class ChatStreamUser(_OpenAiUser):
    route = Route("/v1/chat/completions", stream=True, openai=True)


class ChatUser(_OpenAiUser):
    route = Route("/v1/chat/completions", stream=False, openai=True)


class CompletionStreamUser(_OpenAiUser):
    route = Route("/v1/completions", stream=True, openai=True)


class CompletionUser(_OpenAiUser):
    route = Route("/v1/completions", stream=False, openai=True)
