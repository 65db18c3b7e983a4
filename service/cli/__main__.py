"""The entry point of `mrp-serve`. It imports the commands late: an interrupt meanwhile prints no traceback."""

import sys


def main() -> None:
    """Runs the program."""
    try:
        from service.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
