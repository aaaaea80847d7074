folder = sys.argv[1]
count = 0


def step():
    global count
    count += 1
    with open(f"{folder}/{count % 8}", "ab", buffering=0) as file:
        file.write(b"x" * (1 << 20))


press(step)
