"""A service of known behaviour in a thread: blocks of four tokens at fixed times, one stall, broken streams.

Also the row of an answered request.
"""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from loadtest.generator.rows import Request

STATS = {"tokens_per_forward": 2.5, "cached_tokens": 3, "finish_reason": "length"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 8}


class Fake:
    """What it does with a request, and its requests. One `turn` at a time if `capacity_s` is above 0."""

    def __init__(self, block_s=0.01, capacity_s=0.0, stall=(0.0, 0.0), status=200, breaks=False):
        self.block_s, self.capacity_s, self.stall, self.status, self.breaks = block_s, capacity_s, stall, status, breaks
        self.requests, self.began, self.turn = [], None, threading.Lock()

    def wait(self):
        """Until the stall is over and it is this request's turn."""
        self.began = self.began or time.monotonic()
        since = time.monotonic() - self.began
        after, seconds = self.stall
        if after <= since < after + seconds:
            time.sleep(after + seconds - since)
        with self.turn:
            time.sleep(self.capacity_s)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else small frames wait for one another
    fake: Fake

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._whole(200, {"data": [{"id": "fake", "modes": ["static", "remask"]}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.fake.requests.append((self.path, body))
        self.fake.wait()
        if self.fake.status != 200:
            self._whole(self.fake.status, {"error": {"code": "busy", "message": "later"}})
            return
        openai = self.path != "/generate"
        if not body.get("stream"):
            self._whole(200, openai_answer() if openai else answer())
            return
        self._stream(openai_frames() if openai else frames())

    def _whole(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.send_header("retry-after", "0.2")
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, frames):
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, frame in enumerate(frames):
            if self.fake.breaks and number == 1:
                self.close_connection = True
                return
            time.sleep(self.fake.block_s)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def request(at=0.0, first=50.0, gap=20.0, blocks=3, **changes):
    """An answered request: its blocks come after `first` and then every `gap` milliseconds."""
    times = [first + number * gap for number in range(blocks)]
    values = {"at": at, "late_ms": 0.0, "route": "/generate (stream)", "mode": "static"}
    values |= {"status": 200, "error": "", "finish": "stop", "first_block_ms": first}
    values |= {"total_ms": times[-1] if times else first, "blocks": [(time, 4) for time in times], "tokens": 4 * blocks}
    values |= {"prompt_tokens": 10, "cached_tokens": 0, "tokens_per_forward": 2.0}
    return Request(**values | changes)


def answer():
    return {"token_ids": list(range(8)), "text": "ab", "usage": USAGE, "stats": STATS, "finish_reason": "length"}


def frames():
    for index in range(2):
        block = {"index": index, "token_ids": [1, 2, 3, 4], "text": "a", "stats": STATS}
        yield f"event: block\ndata: {json.dumps(block)}\n\n".encode()
    yield f"event: done\ndata: {json.dumps({'usage': USAGE, 'stats': STATS, 'finish_reason': 'length'})}\n\n".encode()


def openai_answer():
    choice = {"text": "ab", "message": {"content": "ab"}, "token_ids": list(range(8)), "stats": STATS}
    return {"choices": [choice | {"finish_reason": "length"}], "usage": USAGE}


def openai_frames():
    for _ in range(2):
        choice = {"delta": {"content": "a"}, "token_ids": [1, 2, 3, 4], "finish_reason": None}
        yield f"data: {json.dumps({'choices': [choice]})}\n\n".encode()
    yield f"data: {json.dumps({'choices': [{'delta': {}, 'finish_reason': 'length', 'stats': STATS}]})}\n\n".encode()
    yield f"data: {json.dumps({'choices': [], 'usage': USAGE})}\n\n".encode()
    yield b"data: [DONE]\n\n"


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_):
        """Clients that leave are part of the tests."""


@contextmanager
def serve(fake):
    with _Server(("127.0.0.1", 0), type("Bound", (Handler,), {"fake": fake})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
