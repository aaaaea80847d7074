def step():
    near, far = socket.socketpair()
    near.setblocking(False)
    held.append((near, far))
    try:
        while True:
            near.send(b"x" * 65536)
    except BlockingIOError:
        pass


held = []
press(step)
