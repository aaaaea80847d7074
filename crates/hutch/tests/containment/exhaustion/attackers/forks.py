def step():
    if os.fork() == 0:
        signal.pause()


press(step)
