"""What is tested: a row for a method and its parameters, a column for a way to a sandbox, a function for each cell."""

import contextlib
import inspect

# Where a column runs, whether its client is the asynchronous one, and what it speaks to inside the sandbox.
COLUMNS = {
    "up tunnel": ("up", False, "http"),
    "up direct": ("up", False, "http"),
    "up direct async": ("up", True, "http"),
    "up pod": ("up", False, "sandboxd"),
    "up pod async": ("up", True, "sandboxd"),
    "cluster tunnel": ("cluster", False, "http"),
    "cluster direct": ("cluster", False, "http"),
    "cluster direct async": ("cluster", True, "http"),
    "cluster pod": ("cluster", False, "sandboxd"),
    "cluster pod async": ("cluster", True, "sandboxd"),
    "cluster pod tunnel": ("cluster", False, "sandboxd"),
    "cluster pod tunnel async": ("cluster", True, "sandboxd"),
}
# Columns of the second table, whose clients know nothing of sandboxes.
OTHER_COLUMNS = {"up": ("up", False, ""), "cluster": ("cluster", False, "")}
# Columns of the third table, of the client of GKE's Pod snapshots.
SNAPSHOT_COLUMNS = {"hutch up": ("up", False, "http")}

EVERY = tuple(COLUMNS)
SYNC = tuple(name for name, (_, asynchronous, _) in COLUMNS.items() if not asynchronous)
ASYNC = tuple(name for name, (_, asynchronous, _) in COLUMNS.items() if asynchronous)
HTTP = tuple(name for name, (_, _, speaks) in COLUMNS.items() if speaks == "http")
SANDBOXD = tuple(name for name, (_, _, speaks) in COLUMNS.items() if speaks == "sandboxd")
DIRECT = tuple(name for name in COLUMNS if "direct" in name)
# By kubectl: to the router, to a Pod.
ROUTER_TUNNELS = ("up tunnel", "cluster tunnel")
POD_TUNNELS = ("up pod", "up pod async", "cluster pod tunnel", "cluster pod tunnel async")
TUNNELS = ROUTER_TUNNELS + POD_TUNNELS
CLUSTER = tuple(name for name, (where, _, _) in COLUMNS.items() if where == "cluster")

# (row, column) -> (function, the word that the table shows), in the order of the table.
CELLS = {}


def row(name, columns=EVERY, word="yes"):
    """Makes the function the cell of this row in these columns."""
    def register(function):
        for column in columns:
            assert (name, column) not in CELLS, (name, column)
            CELLS[name, column] = (function, word)
        return function
    return register


def absent(name, columns, word):
    """Says that there is nothing to call in these columns."""
    row(name, columns, word)(None)


def rows(columns):
    """The rows of the table with these columns, in order."""
    return list(dict.fromkeys(name for name, column in CELLS if column in columns))


def render(columns):
    """The table as it stands in the document."""
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in rows(columns):
        words = [CELLS[name, column][1] if (name, column) in CELLS else "MISSING" for column in columns]
        lines.append(f"| `{name}` | " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"


async def now(value):
    """The result of a call of either client."""
    return await value if inspect.isawaitable(value) else value


@contextlib.asynccontextmanager
async def within(client):
    """The client's own context manager, of either kind."""
    if hasattr(client, "__aenter__"):
        async with client as entered:
            yield entered
    else:
        with client as entered:
            yield entered


def check(true, *about):
    if not true:
        raise AssertionError(*about)


def equal(found, wanted):
    check(found == wanted, f"{found!r}, wanted {wanted!r}")


async def raises(kind, call, part="", status=None):
    """Makes the call, which must fail so."""
    try:
        result = await now(call())
    except kind as error:
        check(part in str(error), f"{part!r} is not in {error!r}")
        if status is not None:
            equal(error.status_code, status)
        return error
    raise AssertionError(f"no {kind}: {result!r}")
