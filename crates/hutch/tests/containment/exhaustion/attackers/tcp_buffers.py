CONNECTIONS = 2000
listener = socket.create_server(("127.0.0.1", 0), backlog=128)
held = []


def fill(near):
    """Whether anything could be sent."""
    try:
        for count in range(64):
            near.send(b"x" * 65536)
    except BlockingIOError:
        return count > 0
    return True


while len(held) < CONNECTIONS:
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    near.setblocking(False)
    held.append((near, far))
    fill(near)
while True:
    if not any(fill(near) for near, _ in held):
        bound(BlockingIOError(errno.EAGAIN, "all connections are full"))
