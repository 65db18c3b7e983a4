"""The example of docs/batch.md: Ray Data on two workers, of which one is killed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service.demo import heldout_problems
from tests.service.processes import command, descendants

pytest.importorskip("pandas", reason="Ray Data is an extra: pip install '.[batch]'")
parquet = pytest.importorskip("pyarrow.parquet", reason="Ray Data is an extra: pip install '.[batch]'")
pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
ROWS = 200
#: what keeps Ray small and on this machine
INIT = (
    "ray.init(address='local', num_cpus=3, include_dashboard=False, object_store_memory=200 * 2**20, "
    "_node_ip_address='127.0.0.1')"
)


def workers(process: subprocess.Popen[str]) -> list[int]:
    return [pid for pid in descendants(process.pid) if command(pid).startswith("ray::MapWorker(MapBatches(Answers")]


def engines(worker: int) -> list[int]:
    return [pid for pid in descendants(worker) if "service.engine_process.process" in command(pid)]


@pytest.mark.slow
@pytest.mark.ray
def test_two_workers_answer_every_row_even_if_one_is_killed(tmp_path: Path) -> None:
    import pyarrow as pa

    page = (ROOT / "docs" / "batch.md").read_text("utf-8")
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    example = example.replace("ray.init()", INIT).replace("batch_size=256", "batch_size=20")
    (tmp_path / "example.py").write_text(example)
    prompts = [problem.prompt for problem in heldout_problems(ROWS)]
    table = pa.table({"prompt": ["5 " * 5000, *prompts[1:]], "number": list(range(ROWS))})
    parquet.write_table(table, tmp_path / "prompts.parquet")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"MRP_SERVE_TORCH_THREADS": "1", "RAY_worker_niceness": "0"}
    program = [sys.executable, "example.py"]
    process = subprocess.Popen(
        program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    victim = None
    while victim is None:
        assert process.poll() is None, process.communicate()[1]
        ready = [worker for worker in workers(process) if engines(worker)]
        victim = ready[0] if len(ready) == 2 else None
        time.sleep(0.1)
    time.sleep(4)  # its model is loaded, and it has rows
    orphans = engines(victim)
    os.kill(victim, signal.SIGKILL)
    said_by_ray, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    rows = parquet.read_table(tmp_path / "answers").to_pylist()
    assert sorted(row["number"] for row in rows) == list(range(ROWS))
    [failed] = [row for row in rows if row["text"] is None or row["error"] is not None]
    assert failed["number"] == 0
    assert "maximum context length is 1024 tokens" in failed["error"]
    assert "died or was killed while executing a task" in said_by_ray
    assert not any(Path(f"/proc/{engine}").exists() for engine in orphans)
