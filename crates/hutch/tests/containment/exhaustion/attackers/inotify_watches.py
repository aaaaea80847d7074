# Each folder takes one watch of the user, however many instances watch it.
instances = [call(libc.inotify_init1, 0) for _ in range(64)]
count = 0


def step():
    global count
    name = f"/tmp/{count // len(instances)}".encode()
    if count % len(instances) == 0:
        os.mkdir(name)
    call(libc.inotify_add_watch, instances[count % len(instances)], name, 2)
    count += 1


press(step)
