press(lambda: os.open("/dev/null", os.O_RDONLY))
