"""The command line: one command a file, each with a constant `COMMAND`."""

import sys


def main() -> None:
    """Run the command that the arguments name.

    Exit codes: 0 it is done, 1 a check failed, 2 the command line or a file is wrong, 3 the server refused, failed or
    could not be reached.
    """
    try:
        from pushforward.cli._app import make_app
    except ImportError as error:
        print(f'the command line needs {error.name}: pip install "pushforward[cli]"', file=sys.stderr)
        sys.exit(2)
    make_app()()
