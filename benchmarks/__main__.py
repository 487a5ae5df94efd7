"""`python -m benchmarks [name ...] [options]`: runs the benchmarks named, or all of them."""

import argparse
import json
import sys
from pathlib import Path

import benchmarks
from benchmarks._harness import ROOT
from pushforward._registry import scan


def main() -> int:
    """Run what the command line asks for; return 1 if a result was wrong or missing."""
    found = scan(benchmarks, "BENCHMARK")
    listing = "\n".join(f"  {name:12} {benchmark.summary}" for name, benchmark in found.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        epilog=f"benchmarks:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help="which to run (default: all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="measuring time of each figure (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to a file")
    parser.add_argument("--jax-python", type=Path, default=ROOT / ".venv-jax/bin/python", help="JAX's interpreter")
    for benchmark in found.values():
        benchmark.arguments(parser.add_argument_group(benchmark.name, benchmark.summary))
    options = parser.parse_args()
    if unknown := set(options.names) - set(found):
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are: {', '.join(found)}")

    figures, problems = {}, []
    for name in options.names or found:
        figures[name], wrong = found[name].run(options)
        problems += [f"{name}: {line}" for line in wrong]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
