listener = socket.create_server(("127.0.0.1", 0), backlog=128)


def step():
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    near.setblocking(False)
    held.append((near, far))
    try:
        while True:
            near.send(b"x" * 65536)
    except BlockingIOError:
        pass


held = []
press(step)
