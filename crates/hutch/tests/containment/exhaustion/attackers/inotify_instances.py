press(lambda: call(libc.inotify_init1, 0))
