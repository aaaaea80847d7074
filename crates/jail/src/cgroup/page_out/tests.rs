use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use hutch_testkit::swap::Swap as TestSwap;
use hutch_testkit::wait::until;

use super::*;
use crate::Limits;
use crate::cgroup::{Group, Layout};

const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

#[test]
fn lines_of_maps_are_addresses_without_those_of_the_kernel() {
    for (line, wanted) in [
        ("7f00-8f00 rw-p 00000000 00:00 0 ", Some((0x7f00, 0x8f00))),
        ("55d0-55e0 r-xp 00001000 fe:00 12   /usr/bin/a [vdso]\n", None),
        ("55d0-55e0 rw-p 00001000 fe:00 12   /usr/bin/a [vdso]\n", Some((0x55d0, 0x55e0))),
        ("55d0-55e0 rw-s 00000000 00:01 12   /dev/zero (deleted)\n", None),
        ("55d0-55e0 rw-s 00000000 00:00 0\n", None),
        ("55d0-55e0 rw-p 00000000 00:00 0    [anon:[vdso]]\n", Some((0x55d0, 0x55e0))),
        ("55d0-55e0 rw-p 00000000 00:00 0    [heap]\n", Some((0x55d0, 0x55e0))),
        ("7ffd-7ffe r-xp 00000000 00:00 0    [vdso]\n", None),
        ("7ffd-7ffe r--p 00000000 00:00 0    [vvar_vclock]\n", None),
        ("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n", None),
        ("8f00-7f00 rw-p 00000000 00:00 0\n", None),
        ("ffffffffffffffff0-1 rw-p\n", None),
        ("-\n", None),
        ("\n", None),
    ] {
        assert_eq!(mapping(line.as_bytes()), wanted, "{line:?}");
    }
}

#[test]
fn call_that_did_a_part_is_continued_after_it() {
    let ranges = [(0, 10), (100, 10), (200, 10)];
    for (done, wanted) in [
        (0, &[(100, 10), (200, 10)][..]),
        (4, &[(4, 6), (100, 10), (200, 10)]),
        (10, &[(100, 10), (200, 10)]),
        (15, &[(105, 5), (200, 10)]),
        (30, &[]),
        (99, &[]),
    ] {
        assert_eq!(after(&mut ranges.clone(), done), wanted, "{done}");
    }
}

#[test]
fn version_2_group_may_use_as_much_swap_as_memory_only_meanwhile() {
    let group = tempfile::tempdir().unwrap();
    let swap = group.path().join("memory.swap.max");
    assert!(Allowed::swap_of(group.path()).unwrap().0.is_none(), "no limit, no files");
    fs::write(group.path().join("memory.max"), "1048576\n").unwrap();
    fs::write(&swap, "0\n").unwrap();
    let allowed = Allowed::swap_of(group.path()).unwrap();
    assert_eq!(fs::read_to_string(&swap).unwrap(), "1048576");
    drop(allowed);
    assert_eq!(fs::read_to_string(&swap).unwrap(), "0");
    fs::write(&swap, "max\n").unwrap();
    drop(Allowed::swap_of(group.path()).unwrap());
    assert_eq!(fs::read_to_string(&swap).unwrap(), "max\n");
}

#[test]
fn memory_whose_swap_is_not_counted_is_not_written_there() {
    let group = tempfile::tempdir().unwrap();
    assert!(is_swap_uncounted(group.path()));
    let freezer = Freezer { swap_uncounted: true, ..Freezer::of_unified(group.path()) };
    assert!(matches!(freezer.page_out(&|| true, LIMIT), Err(Error::SwapUncounted)));
    fs::write(group.path().join("memory.memsw.limit_in_bytes"), "1").unwrap();
    assert!(!is_swap_uncounted(group.path()));
}

/// A program of Python in a group that can be frozen. It prints a line when it is ready, and for each line that it reads.
struct Program {
    group: Group,
    freezer: Freezer,
    child: Child,
}

impl Program {
    fn start(name: &str, layout: &Layout, limits: &Limits, script: &str) -> Program {
        let id = format!("test-{}-{name}", std::process::id());
        let mut group = Group::create_in(layout, &id, limits).unwrap();
        let freezer = group.make_freezable(layout, &id).unwrap();
        let text = format!(
            "import mmap, os, sys\n{script}\nprint('ready', flush=True)\nfor line in sys.stdin: print(answer(), flush=True)\n"
        );
        let mut command = Command::new("python3");
        let child = command.args(["-c", &text]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        for folder in group.folders() {
            fs::write(folder.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        let mut program = Program { group, freezer, child };
        assert_eq!(program.line(), "ready\n");
        program
    }

    fn line(&mut self) -> String {
        use std::io::Read;
        let (mut text, mut byte) = (String::new(), [0]);
        while !text.ends_with('\n') && self.child.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1 {
            text.push(char::from(byte[0]));
        }
        text
    }

    fn ask(&mut self) -> String {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.line()
    }

    /// Freezes it and writes all of its memory to swap.
    fn page_out(&self) -> PageOut {
        self.freezer.freeze(LIMIT).unwrap();
        let done = self.freezer.page_out(&|| true, LIMIT).unwrap();
        assert_eq!(done.end, PageOutEnd::Complete);
        done
    }

    fn resident(&self) -> u64 {
        resident(Path::new(&format!("/proc/{}", self.child.id())))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.freezer.thaw(LIMIT);
        let _ = self.group.kill_and_remove();
        let _ = self.child.wait();
    }
}

const HEAP: &str = "data = os.urandom(48 << 20)
def answer(): return sum(data[::4096])";

fn layouts() -> Vec<(&'static str, Layout)> {
    let layout = Layout::of_this_machine().unwrap();
    let legacy = Layout { unified: None, legacy: layout.legacy.clone() };
    let mut layouts = Vec::new();
    if layout.unified.is_some() {
        layouts.push(("page-out", layout));
    }
    if legacy.legacy_has(crate::cgroup::Controller::Freezer) {
        layouts.push(("page-out-v1", legacy));
    }
    layouts
}

#[test]
fn memory_of_a_frozen_group_goes_to_swap_and_comes_back() {
    hutch_testkit::require!(root, swap);
    let _swap = TestSwap::new(256 * MIB);
    for (name, layout) in layouts() {
        for limits in [Limits::default(), Limits { memory_bytes: Some(96 * MIB), ..Limits::default() }] {
            let mut program = Program::start(name, &layout, &limits, HEAP);
            let answer = program.ask();
            for _ in 0..2 {
                program.freezer.freeze(LIMIT).unwrap();
                let before = program.resident();
                assert!(before > 48 * MIB, "{before}");
                let done = program.freezer.page_out(&|| true, LIMIT).unwrap();
                assert_eq!(done.end, PageOutEnd::Complete);
                assert!(done.before_bytes > 48 * MIB && done.after_bytes < 4 * MIB, "{name} {done:?}");
                assert!(program.resident() < 4 * MIB, "{}", program.resident());
                program.freezer.thaw(LIMIT).unwrap();
                assert_eq!(program.ask(), answer, "content is intact");
            }
        }
    }
}

#[test]
fn page_out_ends_soon_after_it_is_interrupted() {
    hutch_testkit::require!(root, swap);
    let _swap = TestSwap::new(256 * MIB);
    let (name, layout) = layouts().swap_remove(0);
    let mut program = Program::start(&format!("{name}-stop"), &layout, &Limits::default(), HEAP);
    let answer = program.ask();
    program.freezer.freeze(LIMIT).unwrap();
    assert_eq!(program.freezer.page_out(&|| false, LIMIT).unwrap().end, PageOutEnd::Interrupted);
    assert!(program.resident() > 48 * MIB);
    let calls = AtomicUsize::new(0);
    let going = || calls.fetch_add(1, Ordering::Relaxed) < 3;
    assert_eq!(program.freezer.page_out(&going, LIMIT).unwrap().end, PageOutEnd::Interrupted);
    assert!(program.resident() > 16 * MIB, "at most three pieces were written: {}", program.resident());
    let late = program.freezer.page_out(&|| true, Duration::ZERO).unwrap();
    assert_eq!(late.end, PageOutEnd::OutOfTime);
    program.freezer.thaw(LIMIT).unwrap();
    assert_eq!(program.ask(), answer);
}

#[test]
fn locked_memory_stays_and_many_and_huge_mappings_come_to_an_end() {
    hutch_testkit::require!(root, swap);
    let _swap = TestSwap::new(256 * MIB);
    // 30,000 mappings of a page, one of 64 TiB with a page at its end, and 8 MiB that are locked.
    let script = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
count = 30000
base = libc.mmap(None, count * 4096, 3, 0x22, -1, 0)
byte = lambda page: ctypes.c_ubyte.from_address(base + page * 4096)
for page in range(count):
    byte(page).value = 7
    # Neighbors with the same rights would be one mapping.
    assert page % 2 or libc.mprotect(base + page * 4096, 4096, 1) == 0
size = 1 << 46
huge = libc.mmap(None, size, 3, 0x4022, -1, 0)
assert huge != (1 << 64) - 1
last = ctypes.c_ubyte.from_address(huge + size - 1)
last.value = 5
locked = libc.mmap(None, 8 << 20, 3, 0x22, -1, 0)
assert libc.mlock(ctypes.c_void_p(locked), ctypes.c_size_t(8 << 20)) == 0
def answer(): return sum(byte(page).value for page in range(count)) + last.value";
    let (name, layout) = layouts().swap_remove(0);
    let mut program = Program::start(&format!("{name}-maps"), &layout, &Limits::default(), script);
    let answer = program.ask();
    assert_eq!(answer, "210005\n");
    let done = program.page_out();
    let most = 12 * MIB;
    assert!((8 * MIB..most).contains(&done.after_bytes) && done.before_bytes > 100 * MIB, "{done:?}");
    program.freezer.thaw(LIMIT).unwrap();
    assert_eq!(program.ask(), answer);
}

#[test]
fn own_memory_of_many_processes_goes_to_swap_and_what_they_share_stays() {
    hutch_testkit::require!(root, swap);
    let _swap = TestSwap::new(256 * MIB);
    // Each of 200 has 256 KiB of its own.
    let script = "
import signal
children = []
for _ in range(200):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        own = os.urandom(1 << 18)
        os.write(writer, b'.')
        signal.pause()
    children.append(child)
    assert os.read(reader, 1) == b'.'
    os.close(reader); os.close(writer)
def answer(): return len([child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)])";
    let (name, layout) = layouts().swap_remove(0);
    let mut program = Program::start(&format!("{name}-many"), &layout, &Limits::default(), script);
    let done = program.page_out();
    assert!(done.before_bytes > 50 * MIB && done.after_bytes < 20 * MIB, "{done:?}");
    program.freezer.thaw(LIMIT).unwrap();
    assert_eq!(program.ask(), "200\n");
}

/// Regression: such memory counted as nothing, so that a Sandbox was reported as paged out.
#[test]
fn memory_of_a_process_without_its_first_thread_counts() {
    hutch_testkit::require!(root, swap);
    let script = "
import ctypes, threading
data = os.urandom(24 << 20)
def answer(): return 0
def rest():
    print('ready', flush=True)
    for line in sys.stdin: pass
threading.Thread(target=rest).start()
ctypes.CDLL(None).pthread_exit(None)";
    let (name, layout) = layouts().swap_remove(0);
    let program = Program::start(&format!("{name}-first"), &layout, &Limits::default(), script);
    until("the first thread has ended", || {
        let maps = fs::read(format!("/proc/{}/maps", program.child.id()));
        maps.is_ok_and(|maps| maps.is_empty())
    });
    program.freezer.freeze(LIMIT).unwrap();
    let done = program.freezer.page_out(&|| true, LIMIT).unwrap();
    assert!(done.before_bytes > 24 * MIB && done.after_bytes > 24 * MIB, "{done:?}");
}

#[test]
fn killed_and_removed_group_ends_a_page_out() {
    hutch_testkit::require!(root, swap);
    let _swap = TestSwap::new(256 * MIB);
    for (name, layout) in layouts() {
        let program = Program::start(&format!("{name}-kill"), &layout, &Limits::default(), HEAP);
        program.freezer.freeze(LIMIT).unwrap();
        let calls = AtomicUsize::new(0);
        let going = || {
            if calls.fetch_add(1, Ordering::Relaxed) == 1 {
                program.group.kill_and_remove().unwrap();
            }
            true
        };
        let done = program.freezer.page_out(&going, LIMIT).unwrap();
        assert_eq!(done.end, PageOutEnd::Complete);
        until("it is dead", || program.resident() == 0);
    }
}
