# One use of everything that attackers use up.
if os.fork() == 0:
    os._exit(0)
os.wait()
held = b"x" * (16 << 20)
for folder in ["/tmp", "/dev/shm", *sys.argv[1:]]:
    with open(f"{folder}/work", "wb") as file:
        file.write(held[: 1 << 20])
    os.unlink(f"{folder}/work")
instance = call(libc.inotify_init1, 0)
call(libc.inotify_add_watch, instance, b"/tmp", 2)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
call(libc.sigqueue, os.getpid(), int(signal.SIGRTMIN), ctypes.c_void_p(0))
os.openpty()
fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)
near, far = socket.socketpair()
near.send(b"x" * 4096)
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
near.send(held[: 1 << 16])
print("worked")
