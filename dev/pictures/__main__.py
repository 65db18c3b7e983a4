"""`python -m dev.pictures decoding|frontier|rl --out FOLDER`: draws pictures into a folder."""

import argparse
from pathlib import Path

from dev.pictures.decoding import draw_decoding
from dev.pictures.frontier import draw_frontier
from dev.pictures.learning import draw_learning
from service.demo import CHECKPOINT
from service.quality.schema import FILE_NAME, read_quality


def main() -> None:
    """Prints the path of every picture."""
    parser = argparse.ArgumentParser(prog="python -m dev.pictures", description=__doc__)
    parser.add_argument("what", choices=("decoding", "frontier", "rl"))
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the pictures")
    parser.add_argument("--calibration", type=Path, default=CHECKPOINT / FILE_NAME, help="of the frontier")
    parser.add_argument("--run", nargs=2, action="append", metavar=("LABEL", "FILE"), help="run of training.rl")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "decoding":
        paths = draw_decoding(options.out)
    elif options.what == "rl":
        paths = iter(draw_learning({label: Path(file) for label, file in options.run or ()}, options.out))
    else:
        paths = iter(draw_frontier(read_quality(options.calibration), options.out))
    for path in paths:
        print(f"wrote {path}")  # noqa: T201 - a program


if __name__ == "__main__":
    main()
