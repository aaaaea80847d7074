press(lambda: call(libc.syscall, 248, b"user", b"noise", b"x" * 1024, 1024, -3))
