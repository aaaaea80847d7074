#!/usr/bin/env python3
"""The unmodified package k8s-agent-sandbox 1.0.8, method by method, and clients of other makers.

    --setup                makes templates and pools
    --columns NAME...      runs every cell of these columns
    --render               prints the tables
    --contract             compares the rows with the public methods of the package
    --only PART            runs only cells whose row has this in its name

Wants KUBECONFIG, CLIENTS_SETTINGS (JSON: namespace, router, token, tls, scoped), kubectl on PATH, the packages on
PYTHONPATH. Prints a line of JSON for each cell; exits 1 when one failed.
"""

import argparse
import asyncio
import json
import logging
import sys
import time
import traceback

# No cell may take longer; the cells are not meant to be fast, but to end.
CELL_SECONDS = 300


async def run(columns, only):
    import others, snapshots  # noqa: E401, F401
    from places import Place, settings
    from table import CELLS
    failed = False
    for column in columns:
        place = Place(column, settings())
        for (name, of), (function, word) in CELLS.items():
            if of != column or function is None or only not in name:
                continue
            began, error = time.monotonic(), None
            try:
                await asyncio.wait_for(function(place), CELL_SECONDS)
            except Exception:
                error, failed = traceback.format_exc(), True
            took = round((time.monotonic() - began) * 1000)
            print(json.dumps({"row": name, "column": column, "word": word, "ms": took, "error": error}), flush=True)
        await place.close()
    return failed


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--setup", "--render", "--contract"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--columns", nargs="+", default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--leave", nargs=2)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    import lifecycle, handle, work, ways, resume  # noqa: E401, F401
    from places import Place, settings
    if given.setup:
        import setup
        setup.make(settings())
    if given.render:
        import others, snapshots  # noqa: E401, F401
        from table import COLUMNS, OTHER_COLUMNS, SNAPSHOT_COLUMNS, render
        print(*(render(list(each)) for each in (COLUMNS, SNAPSHOT_COLUMNS, OTHER_COLUMNS)), sep="\n", end="")
    if given.contract:
        import snapshots  # noqa: F401
        import contract
        contract.compare()
    if given.leave:
        asyncio.run(lifecycle.leave(Place(given.leave[0], settings()), given.leave[1]))
    if given.columns and asyncio.run(run(given.columns, given.only)):
        sys.exit(1)


if __name__ == "__main__":
    main()
