"""The command: rows on a golden checkpoint, interrupted and resumed, and its report."""

import json
from collections.abc import Callable

import pytest

from benchmarks.paper.decoders import Answer, EngineDecoder
from benchmarks.paper.published import PaperCell, paper_cell
from benchmarks.paper.rates import Pieces, ratio_of_rates
from benchmarks.paper.records import Chunk, Record
from benchmarks.paper.report import COLUMNS, results_of, table_of, write_plots
from benchmarks.paper.rows import rows_for
from service.decode.modes import Direct, Remask, Speculative, Static
from tests.tiny import GOLDEN

Run = Callable[..., int]

LINES = [
    {"task_id": number, "prompt": " ".join(f"w{(7 * number + word) % 90}" for word in range(9)), "test_list": ["pass"]}
    for number in range(5)
]
ROWS = ("--row", "direct mrp_steps=1", "--row", "speculative mrp_steps=2", "--row", "speculative mrp_steps=auto")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mbpp.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    return folder


def content(out):
    return json.loads((out / "paper.json").read_text())


# --- rows and their numbers --------------------------------------------------------------------------


def test_the_papers_numbers_are_of_8b_in_its_blocks():
    name = "heavyball/sdar-8b-mrp-3lyr@0123"
    assert str(paper_cell(name, 16, Direct(1), "gsm8k")) == "90.1 %, 1.51 to 1.61 x"
    assert paper_cell(name, 16, Remask(0.5), "humaneval").accuracy == 54.9
    assert str(paper_cell(name, 16, Speculative(3), "mbpp")) == "1.26 to 1.40 x"
    assert paper_cell("SDAR-8B", 16, Direct(2)) == PaperCell(speedup=(1.75, 1.91))
    for other in (("heavyball/sdar-1.8b", 16), ("heavyball/sdar-18b", 16), (name, 4)):
        assert str(paper_cell(*other, Static(), "gsm8k")) == ""


def test_a_result_has_accuracy_speed_and_the_papers_numbers_on_the_chunks_of_static(tmp_path):
    """Static solves all problems in 3 s, direct half of them in 2 s, in half of the forwards."""
    _, row = rows_for(["direct  mrp_steps=1"], has_mrp=True, block_size=16)
    records = []
    for name, half, seconds, forwards in (("static", False, 3.0, 30), (row.name, True, 2.0, 15)):
        for start in (0, 4):
            right: list[bool | None] = [not half or number % 2 == 0 for number in range(4)]
            chunk = Chunk(16, 1, "gsm8k", name, start)
            records.append(Record(chunk, [Answer("42", 30, forwards)] * 4, right, seconds))
    records.append(Record(Chunk(16, 1, "gsm8k", row.name, 8), [Answer("42", 30, 15)], [True], 1.0))  # static has none
    static, direct = results_of("SDAR-8B", rows_for([row.name], has_mrp=True, block_size=16), records)
    assert (static.right, static.accuracy, static.speedup) == (8, 1.0, 1.0)
    assert (direct.right, direct.accuracy, direct.speedup, direct.problems) == (4, 0.5, 1.5, 8)
    assert (direct.tokens_per_forward, direct.tokens_per_second, direct.identical) == (2.0, 60.0, None)
    assert direct.accuracy_low < 0.5 < direct.accuracy_high
    assert direct.speedup_low == pytest.approx(1.5) == direct.speedup_high
    assert direct.is_published
    assert direct.cells[2] == "90.1 %, 1.51 to 1.61 x"
    assert table_of([static, direct]) == (list(COLUMNS), [static.cells, direct.cells])
    write_plots(tmp_path, [static, direct])
    assert [file.name for file in tmp_path.glob("*.png")] == ["gsm8k-block-16-at-1.png"]


# --- the command ---------------------------------------------------------------------------------------


def test_every_row_on_both_block_sizes(paper, data, tmp_path, capsys):
    out, model = tmp_path / "out", GOLDEN / "sdar-mrp-random-b"
    with (data / "mbpp.jsonl").open("a") as file:
        file.write("\n" + json.dumps(LINES[0] | {"prompt": "w1 " * 2100}))
    words = ("--tasks", "mbpp", "--data", data, "--concurrency", 2, "--max-new-tokens", 4, "--device", "cpu")
    assert paper("--model", model, *words, *ROWS, "--out", out) == 0
    result = content(out)
    measured = result["measured"]
    assert (measured["model"], measured["device"], measured["dtype"]) == (model.name, "cpu", "float32")
    for size in (4, 16):
        rows = [row for row in result["rows"] if row["block_size"] == size]
        assert [row["row"] for row in rows] == ["static", *ROWS[1::2]]
        assert all((row["problems"], row["refused"], row["accuracy"]) == (6, 1, None) for row in rows)
        assert [row["identical"] for row in rows] == [None, None, 6, 6]
        static, direct, *_ = rows
        assert direct["tokens_per_forward"] > static["tokens_per_forward"]
    assert "mbpp, blocks of 4, 2 at once, 6 problems" in capsys.readouterr().out
    table = (out / "paper.md").read_text()
    assert "## mbpp, blocks of 16, 2 at once, 6 problems" in table
    assert "| row | accuracy | tokens/forward |" in table  # nothing was published of this model
    assert not list(out.glob("*.png"))


def test_an_interrupted_run_goes_on(paper, data, tmp_path, monkeypatch, capsys):
    words = ("--model", GOLDEN / "sdar-mrp-random-a", "--tasks", "mbpp", "--data", data, "--concurrency", 1, *ROWS[:4])
    words = (*words, "--block-size", 8, "--max-new-tokens", 8, "--device", "cpu", "--out", tmp_path / "out")
    decode, calls = EngineDecoder.decode, list[str]()

    def interrupted(self, prompts, row, together):
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
    assert "answers of other options; choose another folder" in capsys.readouterr().err
    assert [row["problems"] for row in content(tmp_path / "out")["rows"]] == [5, 5, 5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tasks", "arc"), "tasks has 'arc', allowed are gsm8k, math500, humaneval, mbpp"),
        (("--row", "swift"), "mode is 'swift'"),
    ],
)
def test_a_wrong_option_is_one_line(paper, data, tmp_path, capsys, words, message):
    assert paper("--tasks", "mbpp", "--data", data, "--device", "cpu", "--out", tmp_path / "out", *words) == 1
    assert message in capsys.readouterr().err


def test_a_ratio_of_rates_knows_no_noise_that_both_have() -> None:
    """The same busy minute makes both slow."""
    slow = [1.0, 3.0, 1.0, 2.0]
    first, other = Pieces([20.0] * 4, slow), Pieces([10.0] * 4, slow)
    estimate = ratio_of_rates(first, other)
    assert estimate.value == estimate.low == estimate.high == 2.0
    uneven = ratio_of_rates(Pieces([20.0] * 4, [1.0, 1.2, 0.9, 1.1]), Pieces([10.0] * 4, [1.0] * 4))
    assert uneven.low < uneven.value < uneven.high
