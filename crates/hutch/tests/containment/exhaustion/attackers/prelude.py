import ctypes, errno, fcntl, os, resource, signal, socket, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)
seen = set()


def bound(error):
    """Prints the name of a refusal once, and gives the machine a moment before the next try."""
    name = errno.errorcode[error.errno]
    if name not in seen:
        seen.add(name)
        print("bound", name, flush=True)
    time.sleep(0.01)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def press(step):
    while True:
        try:
            step()
        except OSError as error:
            bound(error)


hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
