folder = sys.argv[1]
file = open(f"{folder}/hidden", "ab", buffering=0)
os.unlink(f"{folder}/hidden")
press(lambda: file.write(b"x" * (1 << 20)))
