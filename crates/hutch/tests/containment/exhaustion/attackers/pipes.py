def step():
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(writer, 1031, 1 << 20)
    except OSError:
        os.close(reader)
        os.close(writer)
        raise


press(step)
