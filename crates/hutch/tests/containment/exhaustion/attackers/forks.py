def step():
    if os.fork() == 0:
        while True:
            signal.pause()


press(step)
