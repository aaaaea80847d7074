folder = sys.argv[1]
count = 0


def step():
    global count
    if count % 1000 == 0:
        os.makedirs(f"{folder}/{count // 1000}", exist_ok=True)
    os.close(os.open(f"{folder}/{count // 1000}/{count}", os.O_CREAT | os.O_WRONLY))
    count += 1


press(step)
