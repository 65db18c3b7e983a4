"""The console's lines while a run goes on are those of the report, though answers come late."""

from dataclasses import replace

from loadtest.generator.rows import Client, Level, Request
from loadtest.report.driver import Record
from loadtest.report.scenario import Run, Scenario
from loadtest.report.summary import points
from loadtest.run import Progress, line
from tests.loadtest.virtual import queue, request

ARRIVALS = Run("arrivals", "10:5,10:20,10:5", loop="open", modes="static")


def told(row):
    """When a row is written."""
    return row.at + row.total_ms / 1000 if isinstance(row, Request) else row.at


def look(rows, at):
    """What the load generator says of itself at a time: the oldest request that is due and has not ended."""
    flying = [row.at for row in rows if isinstance(row, Request) and row.at <= at < told(row)]
    return Client(float(at), 1, 0.0, min(flying, default=None))


def watch(run, rows, capsys, seconds):
    """`(second, line)` of everything said, the run being watched every second."""
    progress, record, said = Progress(Scenario("t", (run,))), Record(run), []
    for second in range(seconds + 1):
        record.rows += sorted((row for row in rows if second - 1 < told(row) <= second), key=told)
        record.rows.append(look(rows, second))
        progress.show(record)
        said += [(second, text) for text in capsys.readouterr().err.splitlines()]
    progress.rest(record)
    return said + [(seconds, text) for text in capsys.readouterr().err.splitlines()], record.rows


def reported(run, rows):
    scenario = Scenario("t", (run,))
    return [line(point) for point in points(run, rows, [], scenario.slo, scenario.warm_s) if not point.part]


def test_late_answers_of_random_arrivals_are_counted(capsys):
    rows = queue(ARRIVALS, service_s=0.1)  # ten a second are served, so the second level's answers come in the third
    said, seen = watch(ARRIVALS, rows, capsys, seconds=60)
    assert [text for _, text in said] == reported(ARRIVALS, seen)
    late = max(told(row) for row in rows if isinstance(row, Request) and row.stage == 1)
    assert said[0][0] < 16 < late <= said[1][0] <= late + 3


def test_a_closed_loops_slow_answers_are_counted(capsys):
    run = Run("static", "10:2,10:2", modes="static")
    slow = replace(request(at=9.0, first=7000.0), total_ms=7000.0)
    rows = [Level(0.0, 0, 2), slow, Level(10.0, 1, 2), *(request(at=at / 2) for at in range(4, 40))]
    said, seen = watch(run, rows, capsys, seconds=30)
    assert [text for _, text in said] == reported(run, seen)
    assert [second for second, _ in said] == [16, 22]


def test_a_process_that_looked_long_ago_holds_a_level_back(capsys):
    run, rows = Run("static", "10:2,10:2", modes="static"), [Level(0.0, 0, 2), Level(10.0, 1, 2), request(at=5.0)]
    progress = Progress(Scenario("t", (run,)))
    record = Record(run, [*rows, Client(15.0, 1, 0.0), Client(9.0, 2, 0.0)])
    progress.show(record)
    assert not capsys.readouterr().err
    record.rows.append(Client(15.0, 2, 0.0))
    progress.show(record)
    assert len(capsys.readouterr().err.splitlines()) == 1
