//! Turns a table of answers into a classic BPF program, at compile time.

use std::io;

use libc::sock_filter;

use super::table::{self, Answer, TABLE};
use crate::quota::SUBVOLUMES;

/// Bound of the program. Jumps reach 255 instructions, and nearly all go to its end.
const MOST_INSTRUCTIONS: usize = 256;
/// Bound of the ranges of neighbouring numbers with the same answer.
const MOST_RANGES: usize = 128;
/// About the last number that kernels know.
const LAST_NUMBER: u32 = 470;
/// Maximum numbers in a range that are answered differently: one instruction each, where a range of its own
/// costs two, but they are compared one after the other.
const MOST_EXCEPTIONS: usize = 3;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
/// Numbers from here on are of the x32 ABI (x86_64 only), or negative.
const FOREIGN_NUMBERS: u32 = 0x4000_0000;

const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const MASK: u16 = 0x54;
const RETURN: u16 = 0x06;

/// The number of the limit of a core's size, as a filter sees it.
#[allow(clippy::unnecessary_cast, reason = "its type differs between C libraries")]
const CORE: u32 = libc::RLIMIT_CORE as u32;

/// The offset of the architecture in what a filter sees; the number is at 0.
const ARCHITECTURE: u32 = 4;

const fn errno(number: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | number as u32
}

/// The offset of the lower half of an argument; the upper one is 4 bytes on. All compared arguments but pointers are
/// 32 bits wide to the kernel, which ignores the upper half, and so must a filter.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// Where a branch goes.
#[derive(Clone, Copy)]
enum To {
    /// The next instruction.
    Next,
    /// So many instructions after the next.
    Skip(u8),
    /// The code of an answer, which comes later and is there once.
    Answer(Answer),
}

/// A finished program.
///
/// Every instruction costs the install about 0.3 us, since the kernel compiles the program in several passes; so
/// all the code that gives the same answer is there once, and branches lead straight to it.
pub(super) struct Program {
    code: [sock_filter; MOST_INSTRUCTIONS],
    /// Where the two ways of a branch go, as long as that is not known.
    pending: [[To; 2]; MOST_INSTRUCTIONS],
    len: usize,
}

impl Program {
    /// Assembles the program for a table; a program too long is an error of compilation.
    pub(super) const fn assemble(table: &[Answer; TABLE]) -> Program {
        let nothing = sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS };
        let mut program = Program {
            code: [nothing; MOST_INSTRUCTIONS],
            pending: [[To::Next; 2]; MOST_INSTRUCTIONS],
            len: 0,
        };
        program.push(LOAD, ARCHITECTURE);
        program.branch(IF_EQUAL, NATIVE, To::Next, To::Answer(Answer::Kill));
        program.push(LOAD, 0);
        let ranges = Ranges::of(table);
        program.search(&ranges, 0, ranges.len);
        let mut at = 0;
        while at < Answer::ALL.len() {
            let answer = Answer::ALL[at];
            if program.leads_to(answer) {
                let start = program.len;
                program.answer(answer);
                program.link(answer, start);
            }
            at += 1;
        }
        program
    }

    const fn push(&mut self, code: u16, k: u32) {
        assert!(self.len < MOST_INSTRUCTIONS, "the filter is too long");
        self.code[self.len] = sock_filter { code, jt: 0, jf: 0, k };
        self.len += 1;
    }

    const fn branch(&mut self, code: u16, k: u32, yes: To, no: To) {
        self.pending[self.len] = [yes, no];
        self.push(code, k);
        let at = self.len - 1;
        if let To::Skip(distance) = yes {
            self.code[at].jt = distance;
        }
        if let To::Skip(distance) = no {
            self.code[at].jf = distance;
        }
    }

    /// The search tree over `ranges[from..to]`, which are one or more.
    const fn search(&mut self, ranges: &Ranges, from: usize, to: usize) {
        if to - from == 1 {
            return self.exceptions(&ranges.all[from]);
        }
        let middle = ranges.middle(from, to);
        let branch = self.len;
        let left = if middle - from == 1 { ranges.all[from].leaf() } else { To::Next };
        let right = if to - middle == 1 { ranges.all[middle].leaf() } else { To::Next };
        self.branch(IF_AT_LEAST, ranges.all[middle].start, right, left);
        if matches!(left, To::Next) {
            self.search(ranges, from, middle);
        }
        if matches!(right, To::Next) {
            self.code[branch].jt = (self.len - branch - 1) as u8;
            self.search(ranges, middle, to);
        }
    }

    /// The answers of a range that has exceptions, one instruction for each of them.
    const fn exceptions(&mut self, range: &Range) {
        let mut at = 0;
        while at < range.exceptions {
            let last = at + 1 == range.exceptions;
            let other = if last { To::Answer(range.answer) } else { To::Next };
            let (number, answer) = range.exception[at];
            self.branch(IF_EQUAL, number, To::Answer(answer), other);
            at += 1;
        }
    }

    /// Returns `true` when a branch waits for the code of an answer.
    const fn leads_to(&self, answer: Answer) -> bool {
        let mut at = 0;
        while at < self.len {
            if is(self.pending[at][0], answer) || is(self.pending[at][1], answer) {
                return true;
            }
            at += 1;
        }
        false
    }

    /// Points the branches that wait for an answer at its code.
    const fn link(&mut self, answer: Answer, start: usize) {
        let mut at = 0;
        while at < start {
            let distance = start - at - 1;
            if is(self.pending[at][0], answer) {
                assert!(distance <= u8::MAX as usize, "a branch of the filter is too far");
                self.code[at].jt = distance as u8;
            }
            if is(self.pending[at][1], answer) {
                assert!(distance <= u8::MAX as usize, "a branch of the filter is too far");
                self.code[at].jf = distance as u8;
            }
            at += 1;
        }
    }

    /// The code of an answer.
    const fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Allow => self.push(RETURN, libc::SECCOMP_RET_ALLOW),
            Answer::Refuse => self.push(RETURN, errno(libc::EPERM)),
            Answer::Unknown => self.push(RETURN, errno(libc::ENOSYS)),
            Answer::NoFamily => self.push(RETURN, errno(libc::EAFNOSUPPORT)),
            Answer::NoProtocol => self.push(RETURN, errno(libc::EPROTONOSUPPORT)),
            Answer::NoEffect => self.push(RETURN, errno(0)),
            Answer::Kill => self.push(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
            Answer::Clone => self.refuse_bits(0, table::NAMESPACES),
            Answer::Thread => {
                self.push(LOAD, argument(0));
                let thread = libc::CLONE_THREAD as u32;
                self.branch(IF_ANY_BIT, thread, To::Answer(Answer::Allow), To::Answer(Answer::Refuse));
            }
            Answer::Unshare => self.refuse_bits(0, table::NAMESPACES | libc::CLONE_NEWTIME as u32),
            Answer::Ioctl => {
                self.push(LOAD, argument(1));
                let mut next = 0;
                while next < SUBVOLUMES.len() {
                    self.branch(IF_EQUAL, SUBVOLUMES[next], To::Answer(Answer::Refuse), To::Next);
                    next += 1;
                }
                self.branch(IF_EQUAL, libc::TIOCSTI as u32, To::Answer(Answer::Refuse), To::Next);
                self.branch(
                    IF_EQUAL,
                    table::TIOCLINUX,
                    To::Answer(Answer::Refuse),
                    To::Answer(Answer::Allow),
                );
            }
            Answer::Fcntl => {
                self.push(LOAD, argument(1));
                self.branch(IF_EQUAL, libc::F_SETLEASE as u32, To::Answer(Answer::Refuse), To::Next);
                let notify = libc::F_NOTIFY as u32;
                self.branch(IF_EQUAL, notify, To::Answer(Answer::Refuse), To::Answer(Answer::Allow));
            }
            Answer::SetLimit => {
                self.push(LOAD, argument(0));
                self.branch(IF_EQUAL, CORE, To::Answer(Answer::NoEffect), To::Answer(Answer::Allow));
            }
            Answer::SetLimitOf => self.set_limit_of(),
            Answer::Prctl => {
                self.push(LOAD, argument(0));
                let set_mm = libc::PR_SET_MM as u32;
                self.branch(IF_EQUAL, set_mm, To::Answer(Answer::Refuse), To::Answer(Answer::Allow));
            }
            Answer::Personality => self.personality(),
            Answer::Socket => self.socket(To::Answer(Answer::Allow)),
            Answer::NetworkSocket => self.socket(To::Answer(Answer::NoFamily)),
            Answer::SocketPair => {
                self.push(LOAD, argument(0));
                let local = libc::AF_UNIX as u32;
                self.branch(IF_EQUAL, local, To::Answer(Answer::Allow), To::Answer(Answer::NoFamily));
            }
            Answer::ModeSecond => self.refuse_bits(1, table::SET_ID_BITS),
            Answer::ModeThird => self.refuse_bits(2, table::SET_ID_BITS),
            Answer::Open => self.created_mode(1),
            Answer::OpenAt => self.created_mode(2),
        }
    }

    const fn refuse_bits(&mut self, index: u32, bits: u32) {
        self.push(LOAD, argument(index));
        self.branch(IF_ANY_BIT, bits, To::Answer(Answer::Refuse), To::Answer(Answer::Allow));
    }

    /// A core size of 1 keeps the kernel from starting the host's core handler. Setting another value returns
    /// success without effect; if the same call requests the old value, it is refused. Reading is allowed.
    const fn set_limit_of(&mut self) {
        self.push(LOAD, argument(1));
        self.branch(IF_EQUAL, CORE, To::Next, To::Answer(Answer::Allow));
        // Both halves of the pointers: new limit, then old.
        self.push(LOAD, argument(2));
        self.branch(IF_EQUAL, 0, To::Next, To::Skip(2));
        self.push(LOAD, argument(2) + 4);
        self.branch(IF_EQUAL, 0, To::Answer(Answer::Allow), To::Next);
        self.push(LOAD, argument(3));
        self.branch(IF_EQUAL, 0, To::Next, To::Answer(Answer::Refuse));
        self.push(LOAD, argument(3) + 4);
        self.branch(IF_EQUAL, 0, To::Answer(Answer::NoEffect), To::Answer(Answer::Refuse));
    }

    /// Linux as it is, without address randomisation (debuggers, some Lisps), or the question.
    const fn personality(&mut self) {
        self.push(LOAD, argument(0));
        self.branch(IF_EQUAL, 0, To::Answer(Answer::Allow), To::Next);
        self.branch(IF_EQUAL, libc::ADDR_NO_RANDOMIZE as u32, To::Answer(Answer::Allow), To::Next);
        self.branch(IF_EQUAL, 0xffff_ffff, To::Answer(Answer::Allow), To::Answer(Answer::Refuse));
    }

    /// Local sockets, if `local` allows them; TCP, UDP and ping over IP; the routing part of netlink, by which a C library
    /// lists addresses.
    /// The errors are those of a kernel built without the rest, which programs know how to take.
    const fn socket(&mut self, local: To) {
        const ALLOW: To = To::Answer(Answer::Allow);
        self.push(LOAD, argument(0));
        self.branch(IF_EQUAL, libc::AF_UNIX as u32, local, To::Next);
        self.branch(IF_EQUAL, libc::AF_INET as u32, To::Skip(4), To::Next);
        self.branch(IF_EQUAL, libc::AF_INET6 as u32, To::Skip(3), To::Next);
        self.branch(IF_EQUAL, libc::AF_NETLINK as u32, To::Next, To::Answer(Answer::NoFamily));
        self.push(LOAD, argument(2));
        self.branch(IF_EQUAL, libc::NETLINK_ROUTE as u32, ALLOW, To::Answer(Answer::NoProtocol));
        // IP: the type without its flags, then the protocol.
        self.push(LOAD, argument(1));
        self.push(MASK, 0xf);
        self.branch(IF_EQUAL, libc::SOCK_STREAM as u32, To::Skip(1), To::Next);
        self.branch(IF_EQUAL, libc::SOCK_DGRAM as u32, To::Next, To::Answer(Answer::Refuse));
        self.push(LOAD, argument(2));
        self.branch(IF_EQUAL, 0, ALLOW, To::Next);
        self.branch(IF_EQUAL, libc::IPPROTO_TCP as u32, ALLOW, To::Next);
        self.branch(IF_EQUAL, libc::IPPROTO_UDP as u32, ALLOW, To::Next);
        self.branch(IF_EQUAL, libc::IPPROTO_ICMP as u32, ALLOW, To::Next);
        self.branch(IF_EQUAL, libc::IPPROTO_ICMPV6 as u32, ALLOW, To::Answer(Answer::NoProtocol));
    }

    /// A mode counts only where a file may be created: elsewhere the register holds anything. The argument after
    /// the flags is the mode.
    const fn created_mode(&mut self, flags: u32) {
        // `O_TMPFILE` contains `O_DIRECTORY`, with which nothing is created; only its own bit counts.
        let creating = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
        self.push(LOAD, argument(flags));
        self.branch(IF_ANY_BIT, creating, To::Next, To::Answer(Answer::Allow));
        self.refuse_bits(flags + 1, table::SET_ID_BITS);
    }

    /// Sets `no_new_privs` for the calling thread, without which only root may install a program.
    pub(super) fn no_new_privileges() -> io::Result<()> {
        // SAFETY: plain numbers; the call changes one flag of the thread.
        match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Installs it for the calling thread.
    pub(super) fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: self.len as u16,
            // The kernel only reads; the type is older than `const`.
            filter: self.code.as_ptr().cast_mut(),
        };
        // SAFETY: `program` points at `len` instructions of a static, which the kernel copies before it returns.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if done != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The instructions.
    #[cfg(test)]
    pub(super) fn instructions(&self) -> &[sock_filter] {
        &self.code[..self.len]
    }
}

const fn is(to: To, answer: Answer) -> bool {
    matches!(to, To::Answer(waits_for) if waits_for as u8 == answer as u8)
}

/// Neighbouring numbers with the same answer, some single ones excepted.
#[derive(Clone, Copy)]
struct Range {
    start: u32,
    answer: Answer,
    exception: [(u32, Answer); MOST_EXCEPTIONS],
    exceptions: usize,
}

impl Range {
    /// Where a branch to this range goes: straight to its answer, when it has but one.
    const fn leaf(&self) -> To {
        if self.exceptions == 0 { To::Answer(self.answer) } else { To::Next }
    }
}

/// All numbers, in ranges.
struct Ranges {
    all: [Range; MOST_RANGES],
    len: usize,
}

impl Ranges {
    const fn of(table: &[Answer; TABLE]) -> Ranges {
        let nothing = Range {
            start: 0,
            answer: Answer::Unknown,
            exception: [(0, Answer::Unknown); MOST_EXCEPTIONS],
            exceptions: 0,
        };
        let mut ranges = Ranges { all: [nothing; MOST_RANGES], len: 0 };
        let mut number = 0;
        while number < TABLE {
            let next = if number + 1 < TABLE { table[number + 1] } else { Answer::Unknown };
            ranges.add(number as u32, table[number], next);
            number += 1;
        }
        ranges.add(TABLE as u32, Answer::Unknown, Answer::Unknown);
        ranges.add(FOREIGN_NUMBERS, Answer::Kill, Answer::Kill);
        ranges
    }

    /// Where to split `all[from..to]` so that both sides hold about as many numbers: all of them are run through
    /// the filter, once, when it is installed.
    const fn middle(&self, from: usize, to: usize) -> usize {
        let end = if to < self.len { self.all[to].start } else { LAST_NUMBER };
        let wanted = (self.all[from].start + end) / 2;
        let mut middle = from + 1;
        while middle + 1 < to
            && self.all[middle].start.abs_diff(wanted) > self.all[middle + 1].start.abs_diff(wanted)
        {
            middle += 1;
        }
        middle
    }

    const fn add(&mut self, number: u32, answer: Answer, next: Answer) {
        if self.len > 0 {
            let last = &mut self.all[self.len - 1];
            let same = last.answer as u8;
            if same == answer as u8 {
                return;
            }
            if same == next as u8 && last.exceptions < MOST_EXCEPTIONS {
                last.exception[last.exceptions] = (number, answer);
                last.exceptions += 1;
                return;
            }
        }
        assert!(self.len < MOST_RANGES, "too many ranges of system calls");
        self.all[self.len].start = number;
        self.all[self.len].answer = answer;
        self.len += 1;
    }
}
