"""`python -m pushforward.cli`, which is `pushforward`."""

from pushforward.cli import main

main()
