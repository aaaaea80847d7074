"""Reports changes to host file systems by processes of this pid namespace.

Its arguments are a folder with planted files and a folder to spare. It marks every file system of the mount namespace
but those below the latter, and those of the kernel that hold no files. Of planted files it reports reads too. It prints `ready`, then one JSON object for each kind of change: pid, what, path.

An event carries the pid that its process has in the pid namespace of the reader, and 0 when it has none there. The
test, the server, the warden and every jail live in a pid namespace of the test's own, and a nested one has pids in
all of its parents. So no list of processes is kept, and one that is long gone is still counted.
"""

import ctypes
import json
import os
import struct
import sys

CLASS_NOTIF, CLOEXEC, UNLIMITED_QUEUE, UNLIMITED_MARKS = 0x0, 0x1, 0x10, 0x20
REPORT_DFID_NAME = 0x400 | 0x800
MARK_ADD, MARK_FILESYSTEM = 0x1, 0x100
ONDIR, ON_CHILD, OVERFLOW = 0x40000000, 0x08000000, 0x4000
OPEN = 0x20
KINDS = {
    OPEN: "open",
    0x2: "modify",
    0x4: "attrib",
    0x8: "close_write",
    0x40: "moved_from",
    0x80: "moved_to",
    0x100: "create",
    0x200: "delete",
}
# File systems of the kernel without files of the host. Control groups of jails are made on purpose.
KERNEL = {
    "proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "debugfs", "tracefs", "securityfs", "bpf", "pstore",
    "configfs", "efivarfs", "fusectl", "hugetlbfs", "nsfs", "binfmt_misc", "rpc_pipefs", "autofs",
}
AT_FDCWD = -100
libc = ctypes.CDLL(None, use_errno=True)


def failed(what):
    error = ctypes.get_errno()
    sys.exit(f"{what}: {os.strerror(error)}")


def file_system_id(path):
    """The id as events have it: the first eight bytes of f_fsid."""
    buffer = ctypes.create_string_buffer(256)
    if libc.statfs(path.encode(), buffer) != 0:
        failed(f"statfs {path}")
    # struct statfs of 64-bit Linux: seven words, then f_fsid.
    return buffer.raw[56:64]


def unescape(path):
    return path.encode().decode("unicode_escape").encode("latin-1").decode()


def mark(group, spared):
    """Marks each file system once; a folder of each, by file system id."""
    roots, seen = {}, set()
    for line in open("/proc/self/mountinfo"):
        fields, kind = line.split(" - ")
        device, path, kind = fields.split()[2], unescape(fields.split()[4]), kind.split()[0]
        if kind in KERNEL or device in seen or any(path == s or path.startswith(s + "/") for s in spared):
            continue
        seen.add(device)
        mask = ctypes.c_uint64(ONDIR | (sum(KINDS) & ~OPEN))
        if libc.fanotify_mark(group, MARK_ADD | MARK_FILESYSTEM, mask, AT_FDCWD, path.encode()) != 0:
            # What another mount hides, or what cannot be written at all.
            if os.statvfs(path).f_flag & os.ST_RDONLY:
                continue
            failed(f"fanotify_mark {path} ({kind})")
        roots.setdefault(file_system_id(path), os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        print("marked", path, kind, file=sys.stderr)
    return roots


def path_of(roots, record):
    """The path of a directory handle and name; `?` for a folder that is gone."""
    # struct fanotify_event_info_fid: type, pad, length; file system id; handle: length, type, bytes; name.
    fsid = record[4:12]
    size, _ = struct.unpack_from("Ii", record, 12)
    handle, name = record[12:20 + size], record[20 + size:].split(b"\0")[0]
    folder = "?"
    fd = libc.open_by_handle_at(roots.get(fsid, -1), handle, os.O_PATH)
    if fd >= 0:
        folder = os.readlink(f"/proc/self/fd/{fd}")
        os.close(fd)
    return os.path.normpath(os.path.join(folder, os.fsdecode(name)))


def main():
    flags = CLASS_NOTIF | CLOEXEC | UNLIMITED_QUEUE | UNLIMITED_MARKS | REPORT_DFID_NAME
    group = libc.fanotify_init(flags, os.O_RDONLY)
    if group < 0:
        failed("fanotify_init")
    planted, spared = sys.argv[1:]
    roots = mark(group, [spared])
    if libc.fanotify_mark(group, MARK_ADD, ctypes.c_uint64(OPEN | ON_CHILD), AT_FDCWD, planted.encode()) != 0:
        failed(f"fanotify_mark {planted}")
    print("ready", flush=True)
    reported = set()
    while True:
        data = os.read(group, 1 << 20)
        at = 0
        while at < len(data):
            length, _, _, _, mask, _, pid = struct.unpack_from("=IBBHQii", data, at)
            if mask & OVERFLOW:
                print(json.dumps({"pid": 0, "what": "overflow", "path": ""}), flush=True)
            elif pid != 0:
                path = path_of(roots, data[at + 24:at + length])
                what = "+".join(name for bit, name in KINDS.items() if mask & bit)
                if (what, path) not in reported:
                    reported.add((what, path))
                    print(json.dumps({"pid": pid, "what": what, "path": path}), flush=True)
            at += length


main()
